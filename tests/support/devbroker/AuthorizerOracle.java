import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Asks Kafka's StandardAuthorizer for decisions. Each line has a word and its arguments, separated by
 * tabs:
 *
 * <ul>
 *   <li>"new", the super users, and whether everyone may use resources without ACLs
 *   <li>"acl": resource type, name, pattern type, principal, host, operation, permission type
 *   <li>"may": principal, host, operation, resource type, name
 *   <li>"any": principal, host, operation, resource type
 *   <li>"find": the seven parts of a filter, where "-" is null
 * </ul>
 *
 * <p>The last three are questions, and each gets a line: 1 or 0, or the numbers of the ACLs found.
 */
public class AuthorizerOracle {
  private record Client(KafkaPrincipal principal, InetAddress clientAddress)
      implements AuthorizableRequestContext {
    public String listenerName() {
      return "PLAINTEXT";
    }

    public SecurityProtocol securityProtocol() {
      return SecurityProtocol.PLAINTEXT;
    }

    public int requestType() {
      return 0;
    }

    public int requestVersion() {
      return 0;
    }

    public String clientId() {
      return "";
    }

    public int correlationId() {
      return 0;
    }
  }

  public static void main(String[] arguments) throws Exception {
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    StandardAuthorizer authorizer = null;
    List<AclBinding> bindings = new ArrayList<>();
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split("\t", -1);
      switch (words[0]) {
        case "new" -> {
          authorizer = new StandardAuthorizer();
          authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
          authorizer.configure(
              Map.of(
                  "node.id", "1",
                  "super.users", words[1],
                  "allow.everyone.if.no.acl.found", words[2]));
          authorizer.completeInitialLoad();
          bindings.clear();
        }
        case "acl" -> {
          AclBinding binding =
              new AclBinding(
                  new ResourcePattern(
                      ResourceType.valueOf(words[1]), words[2], PatternType.valueOf(words[3])),
                  new AccessControlEntry(
                      words[4],
                      words[5],
                      AclOperation.valueOf(words[6]),
                      AclPermissionType.valueOf(words[7])));
          bindings.add(binding);
          authorizer.addAcl(Uuid.randomUuid(), StandardAcl.fromAclBinding(binding));
        }
        case "may" -> {
          Action action =
              new Action(
                  AclOperation.valueOf(words[3]),
                  new ResourcePattern(
                      ResourceType.valueOf(words[4]), words[5], PatternType.LITERAL),
                  1,
                  true,
                  true);
          out.println(bit(authorizer.authorize(client(words), List.of(action)).get(0)));
        }
        case "any" ->
            out.println(
                bit(
                    authorizer.authorizeByResourceType(
                        client(words),
                        AclOperation.valueOf(words[3]),
                        ResourceType.valueOf(words[4]))));
        case "find" -> {
          AclBindingFilter filter =
              new AclBindingFilter(
                  new ResourcePatternFilter(
                      ResourceType.valueOf(words[1]),
                      nullable(words[2]),
                      PatternType.valueOf(words[3])),
                  new AccessControlEntryFilter(
                      nullable(words[4]),
                      nullable(words[5]),
                      AclOperation.valueOf(words[6]),
                      AclPermissionType.valueOf(words[7])));
          StringBuilder found = new StringBuilder();
          List<AclBinding> matching = new ArrayList<>();
          authorizer.acls(filter).forEach(matching::add);
          for (AclBinding binding : bindings) {
            found.append(matching.contains(binding) ? "1" : "0");
          }
          out.println(found);
        }
        default -> throw new IllegalArgumentException(line);
      }
    }
    out.flush();
  }

  private static Client client(String[] words) throws Exception {
    return new Client(
        SecurityUtils.parseKafkaPrincipal(words[1]), InetAddress.getByName(words[2]));
  }

  private static String bit(AuthorizationResult result) {
    return result == AuthorizationResult.ALLOWED ? "1" : "0";
  }

  private static String nullable(String word) {
    return word.equals("-") ? null : word;
  }
}
