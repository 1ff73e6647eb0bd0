import java.io.IOException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * The local file system, but the whole process group gets SIGKILL before the n-th change that matches a pattern:
 * what was changed before is there, this change and all later ones never happen.
 *
 * <p>FATAL_AT is the pattern, found in `create PATH`, `rename FROM TO` or `delete PATH`; FATAL_COUNT is n.
 */
public class FatalFileSystem extends LocalFileSystem {
    private static final Pattern AT = Pattern.compile(System.getenv("FATAL_AT"));
    private static final AtomicInteger LEFT = new AtomicInteger(Integer.parseInt(System.getenv("FATAL_COUNT")));

    @Override
    public FSDataOutputStream create(
            Path path, FsPermission permission, boolean overwrite, int buffer, short copies, long block, Progressable told)
            throws IOException {
        before("create " + path);
        return super.create(path, permission, overwrite, buffer, copies, block, told);
    }

    @Override
    public boolean rename(Path from, Path to) throws IOException {
        before("rename " + from + " " + to);
        return super.rename(from, to);
    }

    @Override
    public boolean delete(Path path, boolean recursive) throws IOException {
        before("delete " + path);
        return super.delete(path, recursive);
    }

    private static void before(String change) throws IOException {
        if (!AT.matcher(change).find() || LEFT.decrementAndGet() != 0) {
            return;
        }
        System.err.println("killed before: " + change);
        new ProcessBuilder("/bin/sh", "-c", "kill -KILL 0").start();
        while (true) { // the kill comes from outside: nothing may happen until it is here
            try {
                Thread.sleep(Long.MAX_VALUE);
            } catch (InterruptedException ignored) {
                // Spark interrupts tasks, and they must not go on
            }
        }
    }
}
