/**
 * The JVM takes SIGSEGV for null checks of compiled code and for safepoints. Both must work before, between and
 * after faults of the device.
 */
public class Probe {
    int value = 1;

    static native int start();

    static native int unmapped();

    static int load(Probe probe) {
        return probe.value;
    }

    /** Returns how many of the loads met a null pointer. Compiled code has no branch for them. */
    static int nulls(int rounds) {
        int caught = 0;
        Probe probe = new Probe();
        for (int i = 0; i < rounds; i++) {
            try {
                load(i % 1000 == 999 ? null : probe);
            } catch (NullPointerException expected) {
                caught++;
            }
        }
        return caught;
    }

    static void expect(boolean holds, String what) {
        if (!holds) {
            System.out.println(what);
            System.exit(1);
        }
    }

    public static void main(String[] args) throws Exception {
        System.load(args[0]);
        expect(nulls(2_000_000) == 2000, "null checks before the device");
        expect(start() == 0, "start");
        Thread collector = new Thread(() -> {
            while (true) {
                System.gc();
            }
        });
        collector.setDaemon(true);
        collector.start();
        for (int i = 0; i < 20; i++) {
            expect(unmapped() == 0, "unmapped");
            expect(nulls(200_000) == 200, "null checks beside the device");
        }
        System.out.println("ok");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
