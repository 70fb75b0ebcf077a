"""The subject of a certificate, compared with what Java's `X500Principal.getName()` returns."""

from __future__ import annotations

import ssl

import pytest

from spark_kafka_sink.security.subject_name import subject_name
from tests.support.security.certificates import CLIENT_NAME

#: Names in DER, with their texts in Java 17.
NAMES = {
    "3010310e300c06035504031305616c696365": "CN=alice",
    "3060310b3009060355040613024652310c300a06035504081303496446310e300c060355040713055061726973"
    "31133011060355040a130a41636d652c20496e632e310e300c060355040b130553616c6573310e300c06035504"
    "031305616c696365": r"CN=alice,OU=Sales,O=Acme\, Inc.,L=Paris,ST=IdF,C=FR",
    "304431133011060a0992268993f22c64011916036f726731173015060a0992268993f22c6401191607657861"
    "6d706c653114300806035504031301613008060355040b130162": "CN=a+OU=b,DC=example,DC=org",
    "3022310a300806035504031301783114301206092a864886f70d01090116056140622e63": (
        "1.2.840.113549.1.9.1=#16056140622e63,CN=x"
    ),
    "3010310e300c060355040313052061206220": "CN=\\ a b\\ ",
    "30183116301406035504030c0d613d623b633c643e6522665c67": r"CN=a\=b\;c\<d\>e\"f\\g",
    "30123110300e06035504030c074dc3bc6c6c6572": "CN=M\u00fcller",
    "302831123010060355040913094d61696e205374203131123010060a0992268993f22c64010113027531": (
        "UID=u1,STREET=Main St 1"
    ),
    "3019310a30080603550403130178310b3009060355040c13024472": "2.5.4.12=#13024472,CN=x",
    "300d310b300906035504030c022331": r"CN=\#1",
    "300d310b3009060355040313022020": "CN=\\ \\ ",
    "3000": "",
}


def certificate(subject, *, version=b""):
    """Return as much of a certificate as has its subject."""
    empty = b"\x30\x00"
    body = version + b"\x02\x01\x05" + empty * 3 + subject + empty
    return sequence(sequence(body) + empty)


def sequence(content):
    length = len(content).to_bytes(2)
    return b"\x30\x82" + length + content


@pytest.mark.parametrize(("encoded", "name"), NAMES.items(), ids=NAMES.values())
def test_a_subject_is_written_as_java_writes_it(encoded, name):
    """Parts are in reverse order, escaped, and hex digits if they are no known text."""
    subject = bytes.fromhex(encoded)

    assert name == subject_name(certificate(subject))
    assert name == subject_name(certificate(subject, version=bytes.fromhex("a003020102")))


def test_the_subject_of_a_real_certificate_is_found(certificates):
    """A certificate that OpenSSL accepts has the name with which it was issued."""
    pem = certificates.client.pem_file.read_text()
    encoded = ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE-----") :])

    assert CLIENT_NAME == dict(part.split("=") for part in subject_name(encoded).split(","))["CN"]


@pytest.mark.parametrize("cut", [0, 1, 3, 20, 30])
def test_what_is_no_certificate_is_refused(cut):
    """Bytes that end too early raise one kind of error."""
    with pytest.raises(ValueError, match="the subject of a certificate cannot be read"):
        subject_name(certificate(bytes.fromhex("3010310e300c06035504031305616c696365"))[:cut])
