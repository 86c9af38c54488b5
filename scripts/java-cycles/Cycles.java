// Cycles (a lock and its release) a second on one DynamoDB, of callers that each have a lock of their own:
//   sdk    the requests of Amazon's DynamoDB Lock Client in this process, by the AWS SDK for Java
//   http   the requests of a Leasehold client, to `leasehold serve` before the same DynamoDB
// java -cp 'LIB/*' Cycles.java sdk|http URL CALLERS SECONDS

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.http.apache.ApacheHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.dynamodb.DynamoDbClient;
import software.amazon.awssdk.services.dynamodb.model.AttributeDefinition;
import software.amazon.awssdk.services.dynamodb.model.AttributeValue;
import software.amazon.awssdk.services.dynamodb.model.BillingMode;
import software.amazon.awssdk.services.dynamodb.model.KeySchemaElement;
import software.amazon.awssdk.services.dynamodb.model.KeyType;
import software.amazon.awssdk.services.dynamodb.model.ResourceInUseException;
import software.amazon.awssdk.services.dynamodb.model.ScalarAttributeType;

public class Cycles {
    interface Caller {
        void cycle() throws Exception;
    }

    private static final int WARM = 2000;
    private static final String TABLE = "java-lock-client";

    public static void main(String[] args) throws Exception {
        String url = args[1];
        int callers = Integer.parseInt(args[2]);
        double seconds = Double.parseDouble(args[3]);
        List<Caller> all = new ArrayList<>();
        if (args[0].equals("sdk")) {
            DynamoDbClient dynamodb = dynamodb(url, callers);
            for (int i = 0; i < callers; i++) all.add(sdk(dynamodb, "caller-" + i));
        } else {
            HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
            for (int i = 0; i < callers; i++) all.add(http(http, url, "caller-" + i));
        }
        // The virtual machine compiles what is hot.
        for (long until = System.nanoTime() + 30_000_000_000L, count = 0; count < WARM && System.nanoTime() < until; ) {
            double second = measure(all, 1);
            count += (long) second;
        }
        System.out.printf("%.0f%n", measure(all, seconds));
    }

    private static double measure(List<Caller> callers, double seconds) throws Exception {
        long began = System.nanoTime();
        long end = began + (long) (seconds * 1e9);
        var threads = Executors.newFixedThreadPool(callers.size());
        List<Callable<Integer>> tasks = new ArrayList<>();
        for (Caller caller : callers) {
            tasks.add(() -> {
                int count = 0;
                for (; System.nanoTime() < end; count++) caller.cycle();
                return count;
            });
        }
        int cycles = 0;
        for (var done : threads.invokeAll(tasks)) cycles += done.get();
        threads.shutdown();
        return cycles / ((System.nanoTime() - began) / 1e9);
    }

    private static DynamoDbClient dynamodb(String url, int callers) {
        DynamoDbClient dynamodb = DynamoDbClient.builder()
            .endpointOverride(URI.create(url))
            .region(Region.EU_WEST_1)
            .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("local", "local")))
            .httpClientBuilder(ApacheHttpClient.builder().maxConnections(callers + 1))
            .build();
        try {
            dynamodb.createTable(table -> table.tableName(TABLE)
                .billingMode(BillingMode.PAY_PER_REQUEST)
                .attributeDefinitions(AttributeDefinition.builder().attributeName("key").attributeType(ScalarAttributeType.S).build())
                .keySchema(KeySchemaElement.builder().attributeName("key").keyType(KeyType.HASH).build()));
        } catch (ResourceInUseException exists) {
            // of an earlier round
        }
        return dynamodb;
    }

    /** A consistent read, a conditional put, and a conditional delete, as acquireLock and releaseLock make them. */
    private static Caller sdk(DynamoDbClient dynamodb, String name) {
        Map<String, AttributeValue> key = Map.of("key", text(name));
        return () -> {
            dynamodb.getItem(get -> get.tableName(TABLE).key(key).consistentRead(true));
            String version = UUID.randomUUID().toString();
            dynamodb.putItem(put -> put.tableName(TABLE)
                .item(Map.of(
                    "key", text(name),
                    "ownerName", text(name),
                    "leaseDuration", text("20000"),
                    "recordVersionNumber", text(version)))
                .conditionExpression("attribute_not_exists(#pk)")
                .expressionAttributeNames(Map.of("#pk", "key")));
            dynamodb.deleteItem(delete -> delete.tableName(TABLE)
                .key(key)
                .conditionExpression("attribute_exists(#pk) AND #rvn = :rvn AND #owner = :owner")
                .expressionAttributeNames(Map.of("#pk", "key", "#rvn", "recordVersionNumber", "#owner", "ownerName"))
                .expressionAttributeValues(Map.of(":rvn", text(version), ":owner", text(name))));
        };
    }

    private static Caller http(HttpClient http, String url, String name) {
        return () -> {
            String common = "{\"key\":\"%s\",\"leaseId\":\"%s\"".formatted(name, UUID.randomUUID());
            String acquire = ",\"ownerName\":\"%s\",\"leaseDurationMs\":20000,\"sequence\":1,\"requestId\":\"%s\"}";
            post(http, url + "/v1/acquire", common + acquire.formatted(name, UUID.randomUUID()));
            post(http, url + "/v1/release", common + "}");
        };
    }

    private static void post(HttpClient http, String url, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url))
            .header("content-type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(body))
            .build();
        HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) throw new IllegalStateException(answer.statusCode() + " " + answer.body());
    }

    private static AttributeValue text(String value) {
        return AttributeValue.builder().s(value).build();
    }
}
