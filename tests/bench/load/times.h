/* Times of many round trips, and their summary. */
#ifndef BENCH_TIMES_H
#define BENCH_TIMES_H

#include <stdint.h>

/* Sort *count* times and print their percentiles as one JSON object, in nanoseconds. */
void print_percentiles(int64_t *times, uint32_t count);

#endif
