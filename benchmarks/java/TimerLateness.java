// Kafka's own SystemTimerReaper, for benchmarks.timer_lateness: for each tick a line with the lateness of all tasks in
// microseconds. Run as source with Kafka's jars on the class path: java -cp 'jars/*' TimerLateness.java COUNT SPAN TICK...

import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.timer.SystemTimer;
import org.apache.kafka.server.util.timer.SystemTimerReaper;
import org.apache.kafka.server.util.timer.TimerTask;

public class TimerLateness {
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[0]);
        int spanMs = Integer.parseInt(arguments[1]);
        for (int i = 2; i < arguments.length; i++) measure(count, spanMs, Long.parseLong(arguments[i]));
    }

    static void measure(int count, int spanMs, long tickMs) throws Exception {
        SystemTimer timer = new SystemTimer("lateness", tickMs, 20, Time.SYSTEM.hiResClockMs());
        SystemTimerReaper reaper = new SystemTimerReaper("reaper", timer);
        ConcurrentLinkedQueue<Long> lateUs = new ConcurrentLinkedQueue<>();
        CountDownLatch left = new CountDownLatch(count);
        Random chance = new Random(1);
        for (int i = 0; i < count; i++) {
            long delayMs = chance.nextInt(spanMs);
            long dueNs = System.nanoTime() + delayMs * 1_000_000;
            reaper.add(new TimerTask(delayMs) {
                @Override
                public void run() {
                    lateUs.add((System.nanoTime() - dueNs) / 1000);
                    left.countDown();
                }
            });
        }
        left.await();
        StringBuilder line = new StringBuilder();
        for (long one : lateUs) line.append(one).append(' ');
        System.out.println(line);
        reaper.close();
    }
}
