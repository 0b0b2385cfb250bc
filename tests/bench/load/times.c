#include "times.h"

#include <stdio.h>
#include <stdlib.h>

static int by_size(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

void print_percentiles(int64_t *times, uint32_t count) {
    qsort(times, count, sizeof *times, by_size);
    printf("{\"p50_ns\": %ld, \"p99_ns\": %ld}\n", (long)times[count / 2], (long)times[count / 100 * 99]);
}
