import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedWriter;
import java.io.FileReader;
import java.io.FileWriter;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Runs the Debezium engine with JSON until it has delivered a number of changes, and prints how long that took.
 *
 * Arguments: a file of properties, the number of changes, and optionally a file that gets one line for each change: the
 * key and the LSN. The output is one line: changes, wall seconds and CPU seconds from the first change to the last, and
 * the seconds from the start to the first.
 */
public class DebeziumCapture implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
    private static final Pattern LSN = Pattern.compile("\"lsn\":(\\d+)");
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final long started = System.nanoTime();
    private final CountDownLatch done = new CountDownLatch(1);
    private final long expected;
    private final BufferedWriter seen;
    private long count;
    private long first;
    private long firstCpu;

    DebeziumCapture(long expected, BufferedWriter seen) {
        this.expected = expected;
        this.seen = seen;
    }

    @Override
    public void handleBatch(
            List<ChangeEvent<String, String>> records,
            DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) throws InterruptedException {
        if (count == 0) {
            first = System.nanoTime();
            firstCpu = SYSTEM.getProcessCpuTime();
        }
        try {
            for (ChangeEvent<String, String> record : records) {
                if (seen != null && record.value() != null) {
                    Matcher lsn = LSN.matcher(record.value());
                    seen.write(record.key() + (lsn.find() ? lsn.group(1) : "") + "\n");
                }
                committer.markProcessed(record);
            }
            if (seen != null) {
                seen.flush();
            }
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
        committer.markBatchFinished();
        boolean ended = count >= expected;
        count += records.size();
        if (!ended && count >= expected) {
            double wall = (System.nanoTime() - first) / 1e9;
            double cpu = (SYSTEM.getProcessCpuTime() - firstCpu) / 1e9;
            System.out.println(count + " " + wall + " " + cpu + " " + (first - started) / 1e9);
            done.countDown();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.load(new FileReader(arguments[0]));
        BufferedWriter seen =
                arguments.length > 2 ? new BufferedWriter(new FileWriter(arguments[2], true)) : null;
        DebeziumCapture consumer = new DebeziumCapture(Long.parseLong(arguments[1]), seen);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                .using(properties)
                .using((success, message, error) -> {
                    if (!success) {
                        System.err.println(message);
                        System.exit(1);
                    }
                })
                .notifying(consumer)
                .build();
        Executors.newSingleThreadExecutor().submit(engine);
        consumer.done.await();
        engine.close();
        System.exit(0);
    }
}
