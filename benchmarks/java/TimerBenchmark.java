// Kafka's own SystemTimer, for benchmarks.timers: prints "insert cancel expire" in nanoseconds of CPU per task, once
// per round. Run as source with Kafka's jars on the class path: java -cp 'jars/*' TimerBenchmark.java COUNT ROUNDS

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Collections;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.timer.SystemTimer;
import org.apache.kafka.server.util.timer.TimerTask;

public class TimerBenchmark {
    static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    static final class Task extends TimerTask {
        final CountDownLatch left;

        Task(long delayMs, CountDownLatch left) {
            super(delayMs);
            this.left = left;
        }

        @Override
        public void run() {
            left.countDown();
        }
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[0]);
        int rounds = Integer.parseInt(arguments[1]);
        for (int round = 0; round < rounds; round++) {
            System.out.printf("%d %d %d%n", insertAndCancel(count, round, true), insertAndCancel(count, round, false),
                expire(count, round));
        }
    }

    // All Java threads, the timer's executor included; without compiler and collector.
    static long cpuNs() {
        long sum = 0;
        for (long id : THREADS.getAllThreadIds()) sum += Math.max(THREADS.getThreadCpuTime(id), 0);
        return sum;
    }

    static List<Task> tasks(int count, int seed, long fromMs, long toMs, CountDownLatch left) {
        Random chance = new Random(seed);
        List<Task> tasks = new ArrayList<>(count);
        for (int i = 0; i < count; i++)
            tasks.add(new Task(fromMs + (long) (chance.nextDouble() * (toMs - fromMs)), left));
        return tasks;
    }

    static long insertAndCancel(int count, int seed, boolean isInsert) throws Exception {
        SystemTimer timer = new SystemTimer("benchmark", 1, 20, Time.SYSTEM.hiResClockMs());
        List<Task> tasks = tasks(count, seed, 100_000, 160_000, new CountDownLatch(0));
        long started = cpuNs();
        for (Task task : tasks) timer.add(task);
        long inserted = cpuNs();
        Collections.shuffle(tasks, new Random(seed));
        long shuffled = cpuNs();
        for (Task task : tasks) task.cancel();
        long cancelled = cpuNs();
        if (timer.size() != 0) throw new IllegalStateException(timer.size() + " tasks are left");
        timer.close();
        return (isInsert ? inserted - started : cancelled - shuffled) / count;
    }

    static long expire(int count, int seed) throws Exception {
        SystemTimer timer = new SystemTimer("benchmark", 1, 20, Time.SYSTEM.hiResClockMs());
        CountDownLatch left = new CountDownLatch(count);
        for (Task task : tasks(count, seed, 1000, 3000, left)) timer.add(task);
        Thread.sleep(3500);
        long started = cpuNs();
        while (timer.advanceClock(0)) { }
        left.await();
        long expired = cpuNs();
        timer.close();
        return (expired - started) / count;
    }
}
