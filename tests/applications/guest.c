/* A guest without an operating system, for the migration of its memory (Multiboot, 32 bits, one CPU).
 *
 * It fills 64 MiB; each word depends on its address and on the round of its page. Then it repeats for ever:
 * it compares all words, and meanwhile begins new rounds in the first 256 pages, each of them 64 times.
 * The debug console (port 0xe9) shows `R` after the first fill, then `.` for each pass without a wrong word
 * and `X` for each other one.
 */
#include <stdint.h>

enum { PAGE_WORDS = 1024, PAGES = 16384, BUSY_PAGES = 256 };

/* Magic number, flags, checksum: Multiboot specification 0.6.96, 3.1. */
__attribute__((section(".multiboot"), used)) static const uint32_t header[] = {
    0x1badb002, 0, -0x1badb002u};

static volatile uint32_t *const memory = (volatile uint32_t *)0x400000;
static uint32_t rounds[PAGES];
__attribute__((used, aligned(16))) static uint8_t stack[4096];

static void put(char c) { __asm__ volatile("outb %0, %1" : : "a"(c), "Nd"((uint16_t)0xe9)); }

static uint32_t expected(uint32_t page, uint32_t at) {
    return (page * PAGE_WORDS + at + 1) * 2654435761u ^ (rounds[page] + 1) * 40503u;
}

static void fill(uint32_t page) {
    for (uint32_t at = 0; at < PAGE_WORDS; at++) memory[page * PAGE_WORDS + at] = expected(page, at);
}

static int is_wrong(uint32_t page) {
    for (uint32_t at = 0; at < PAGE_WORDS; at++)
        if (memory[page * PAGE_WORDS + at] != expected(page, at)) return 1;
    return 0;
}

__attribute__((used)) static void run(void) {
    for (uint32_t page = 0; page < PAGES; page++) fill(page);
    put('R');
    for (;;) {
        int wrong = 0;
        for (uint32_t page = 0; page < PAGES; page++) {
            uint32_t busy = page % BUSY_PAGES;
            wrong |= is_wrong(page) | is_wrong(busy);
            rounds[busy]++;
            fill(busy);
        }
        put(wrong ? 'X' : '.');
    }
}

__attribute__((naked, used)) void _start(void) { __asm__("mov $stack + 4096, %esp\n\tcall run"); }
