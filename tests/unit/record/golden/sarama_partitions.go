// Writes sarama_partitions.json, with which the tests compare: where the HashPartitioner of Sarama, a
// Kafka client for Go, places given keys. Run by hand, in a module that requires Sarama 1.45.2:
//
//     go run sarama_partitions.go > sarama_partitions.json

package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand"

	"github.com/IBM/sarama"
)

func main() {
	r := rand.New(rand.NewSource(1))
	keys := [][]byte{{}, []byte("1468509572224"), []byte("foobar"), []byte("foo"), []byte("kafka"), []byte("a"), {0}, {0xff}, {0x80, 0, 0xff}, []byte("ключ")}
	for n := 1; n <= 30; n++ {
		k := make([]byte, n)
		r.Read(k)
		keys = append(keys, k)
	}
	counts := []int32{1, 2, 3, 7, 50, 1000, 2147483647}
	type row struct {
		Key        string  `json:"key"`
		Partitions []int32 `json:"partitions"`
	}
	var rows []row
	for _, k := range keys {
		var ps []int32
		for _, c := range counts {
			p, err := sarama.NewHashPartitioner("t").Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(k)}, c)
			if err != nil {
				panic(err)
			}
			ps = append(ps, p)
		}
		rows = append(rows, row{hex.EncodeToString(k), ps})
	}
	fmt.Println("{")
	c, _ := json.Marshal(counts)
	fmt.Printf("\"partition_counts\": %s,\n\"rows\": [\n", c)
	for i, x := range rows {
		b, _ := json.Marshal(x)
		sep := ","
		if i == len(rows)-1 {
			sep = ""
		}
		fmt.Printf("%s%s\n", b, sep)
	}
	fmt.Println("]}")
}
