/* How far apart two CPUs are: the time that a cache line takes from one to the other and back. A hypervisor
 * may move the virtual CPUs between cores that share a cache and cores that do not.
 *
 *     line CPU CPU    prints ns: the least mean of several series
 */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { SERIES = 200, ROUNDS = 100 };

static _Alignas(128) _Atomic long line;

static void stay_on(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	check(sched_setaffinity(0, sizeof set, &set), "no such CPU");
}

static void wait_for(long value)
{
	while (atomic_load_explicit(&line, memory_order_acquire) != value)
		;
}

static void *answer(void *cpu)
{
	stay_on(*(int *)cpu);
	for (long n = 1; n < 2L * SERIES * ROUNDS; n += 2) {
		wait_for(n);
		atomic_store_explicit(&line, n + 1, memory_order_release);
	}
	return NULL;
}

int main(int count, char **words)
{
	check(count != 3 || !strcmp(words[1], words[2]), "line CPU CPU: two CPUs");
	int cpus[2] = { atoi(words[1]), atoi(words[2]) };
	pthread_t thread;
	check(pthread_create(&thread, NULL, answer, &cpus[1]), "thread");
	stay_on(cpus[0]);
	double least = 1e9;
	for (long series = 0, n = 1; series < SERIES; series++) {
		double begun = now_ns();
		for (int round = 0; round < ROUNDS; round++, n += 2) {
			atomic_store_explicit(&line, n, memory_order_release);
			wait_for(n + 1);
		}
		double mean = (now_ns() - begun) / ROUNDS;
		least = mean < least ? mean : least;
	}
	pthread_join(thread, NULL);
	printf("%.0f\n", least);
	return 0;
}
