/* What threads lose that share one lock, without verbs: each step takes the lock, changes STATE bytes that
 * all threads share, as an engine's queues and rings are, and copies the thread's own BYTES into a shared
 * ring and out of it. Prints steps per second of all threads together. The ratio of two threads to one is
 * the most that two threads on one engine can reach, because the lines of the state and of the ring move
 * between the CPUs. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { THREADS_MAX = 32, BYTES_MAX = 65536, RING = 512 << 10, LINE = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t begun;
static atomic_bool ended;
static size_t bytes, state_bytes, at;
static char *ring, *state;

struct steps {
	pthread_t thread;
	long done;
};

static void *take_steps(void *argument)
{
	struct steps *steps = argument;
	char *memory = aligned_alloc(4096, 2 * BYTES_MAX);
	check(!memory, "memory");
	memset(memory, 1, 2 * BYTES_MAX);
	pthread_barrier_wait(&begun);
	while (!ended) {
		pthread_mutex_lock(&lock);
		for (size_t i = 0; i < state_bytes; i += LINE)
			((volatile char *)state)[i]++;
		at = at + bytes > RING ? 0 : at;
		memcpy(ring + at, memory, bytes);
		memcpy(memory + BYTES_MAX, ring + at, bytes);
		at += bytes;
		pthread_mutex_unlock(&lock);
		steps->done++;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc == 5 ? atoi(argv[1]) : 0;
	bytes = argc == 5 ? atoi(argv[2]) : 0;
	state_bytes = argc == 5 ? atoi(argv[3]) : 0;
	double seconds = argc == 5 ? atof(argv[4]) : 0;
	if (threads < 1 || threads > THREADS_MAX || bytes > BYTES_MAX || state_bytes > RING || seconds <= 0) {
		fprintf(stderr, "usage: lock THREADS BYTES STATE SECONDS\n");
		return 2;
	}
	ring = aligned_alloc(4096, RING);
	state = aligned_alloc(4096, RING);
	check(!ring || !state, "memory");
	memset(ring, 0, RING);
	memset(state, 0, RING);
	pthread_barrier_init(&begun, NULL, threads + 1);
	static struct steps steps[THREADS_MAX];
	for (int i = 0; i < threads; i++)
		check(pthread_create(&steps[i].thread, NULL, take_steps, &steps[i]), "pthread_create");
	pthread_barrier_wait(&begun);
	double start = now_ns();
	usleep(seconds * 1e6);
	ended = true;
	double sum = 0;
	for (int i = 0; i < threads; i++) {
		pthread_join(steps[i].thread, NULL);
		sum += steps[i].done;
	}
	printf("%.0f\n", sum / ((now_ns() - start) / 1e9));
	return 0;
}
