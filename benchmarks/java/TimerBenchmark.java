// Kafka's own SystemTimer, for benchmarks.timers: prints "insert cancel expire mix bytes" once per round, the first four
// in nanoseconds of CPU per task, the last per waiting task. Run as source with Kafka's jars on the class path:
// java -cp 'jars/*' TimerBenchmark.java COUNT ROUNDS

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Collections;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
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
            System.out.printf("%d %d %d %d %d%n", insertAndCancel(count, round, true),
                insertAndCancel(count, round, false), expire(count, round), mix(count, round), bytes(count, round));
        }
    }

    // Of all Java threads, the timer's executor included; without compiler and collector.
    static Map<Long, Long> cpuNs() {
        Map<Long, Long> spent = new HashMap<>();
        for (long id : THREADS.getAllThreadIds()) spent.put(id, Math.max(THREADS.getThreadCpuTime(id), 0));
        return spent;
    }

    // A thread that has ended meanwhile, of the timer before this one, does not count.
    static long between(Map<Long, Long> started, Map<Long, Long> ended) {
        long sum = 0;
        for (Map.Entry<Long, Long> one : ended.entrySet()) sum += one.getValue() - started.getOrDefault(one.getKey(), 0L);
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
        Map<Long, Long> started = cpuNs();
        for (Task task : tasks) timer.add(task);
        Map<Long, Long> inserted = cpuNs();
        Collections.shuffle(tasks, new Random(seed));
        Map<Long, Long> shuffled = cpuNs();
        for (Task task : tasks) task.cancel();
        Map<Long, Long> cancelled = cpuNs();
        if (timer.size() != 0) throw new IllegalStateException(timer.size() + " tasks are left");
        timer.close();
        return (isInsert ? between(started, inserted) : between(shuffled, cancelled)) / count;
    }

    static long expire(int count, int seed) throws Exception {
        SystemTimer timer = new SystemTimer("benchmark", 1, 20, Time.SYSTEM.hiResClockMs());
        CountDownLatch left = new CountDownLatch(count);
        for (Task task : tasks(count, seed, 1000, 3000, left)) timer.add(task);
        Thread.sleep(3500);
        Map<Long, Long> started = cpuNs();
        while (timer.advanceClock(0)) { }
        left.await();
        Map<Long, Long> expired = cpuNs();
        timer.close();
        return between(started, expired) / count;
    }

    // Of MIX tasks one runs, the others are cancelled.
    static final int MIX = 10;

    static long mix(int count, int seed) throws Exception {
        SystemTimer timer = new SystemTimer("benchmark", 1, 20, Time.SYSTEM.hiResClockMs());
        CountDownLatch left = new CountDownLatch(count / MIX);
        List<Task> tasks = tasks(count, seed, 1000, 3000, left);
        List<Task> cancelled = new ArrayList<>(tasks);
        Collections.shuffle(cancelled, new Random(seed));
        cancelled = cancelled.subList(count / MIX, count);
        Map<Long, Long> started = cpuNs();
        for (Task task : tasks) timer.add(task);
        for (Task task : cancelled) task.cancel();
        Map<Long, Long> added = cpuNs();
        Thread.sleep(3500);
        Map<Long, Long> due = cpuNs();
        while (timer.advanceClock(0)) { }
        left.await();
        Map<Long, Long> expired = cpuNs();
        if (timer.size() != 0) throw new IllegalStateException(timer.size() + " tasks are left");
        timer.close();
        return (between(started, added) + between(due, expired)) / count;
    }

    static long bytes(int count, int seed) throws Exception {
        SystemTimer timer = new SystemTimer("benchmark", 1, 20, Time.SYSTEM.hiResClockMs());
        CountDownLatch left = new CountDownLatch(0);
        long before = used();
        List<Task> kept = tasks(count, seed, 100_000, 160_000, left);
        for (Task task : kept) timer.add(task);
        long after = used();
        if (timer.size() != kept.size()) throw new IllegalStateException(timer.size() + " tasks are in the timer");
        timer.close();
        return (after - before) / count;
    }

    static long used() throws Exception {
        for (int i = 0; i < 3; i++) {
            System.gc();
            Thread.sleep(50);
        }
        Runtime runtime = Runtime.getRuntime();
        return runtime.totalMemory() - runtime.freeMemory();
    }
}
