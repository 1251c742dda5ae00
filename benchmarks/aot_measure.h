/* What the C programs of `benchmarks.aot` share: a call is made for so many seconds, and one line of
   JSON says the seconds from the start of main to the first result, the least seconds of a call by
   the clock and of all processors together (both of a batch of calls), and the most memory that was
   resident. C and C++ include it. */
#ifndef AOT_MEASURE_H
#define AOT_MEASURE_H
#include <stdio.h>
#include <time.h>

static double seconds_of(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double now(void) { return seconds_of(CLOCK_MONOTONIC); }

/* The most bytes of this process that were resident. */
static long resident(void) {
    char line[256];
    long found = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "VmHWM: %ld kB", &found);
    if (file) fclose(file);
    return found * 1024;
}

static void measure(double first, double wanted, void (*call)(void *), void *given) {
    double fastest = 1e9, least = 1e9, end = now() + wanted;
    long calls = 0, batch = 1, i;
    while (now() < end) {
        double started = now(), worked = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        for (i = 0; i < batch; i++) call(given);
        worked = (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - worked) / (double)batch;
        started = now() - started;
        calls += batch;
        if (started / (double)batch < fastest) fastest = started / (double)batch;
        if (worked < least) least = worked;
        if (started < 0.005 && batch < 1000000) batch *= 2;
    }
    printf("{\"first\": %.6f, \"call\": %.9f, \"worked\": %.9f, \"calls\": %ld, \"resident\": %ld}\n",
           first, fastest, least, calls, resident());
}
#endif
