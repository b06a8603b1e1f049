/* What the sanitizers watch: every C kernel over exact-sized heap blocks, small shapes one by one.
 *
 * A block ends where its last row ends, so one byte too many is caught; one cache lies beyond 4 GiB, so a
 * 32-bit product of slot and stride is, too. Run as `selftest overflow`, it breaks the rule on purpose:
 * a build in which that passes watches nothing. Built and run by `python -m minisgl_kernels.sanitize`. */

#define _DEFAULT_SOURCE /* anonymous mappings */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "compare_key/compare_key.cdef"
#include "store_kv/store_kv.cdef"
#include "gather_kv/gather_kv.cdef"

enum { FILL = 0x55 };

static long checks = 0;

static void expect(int condition, const char *claim, int64_t a, int64_t b)
{
    checks++;
    if (!condition) {
        fprintf(stderr, "selftest: %s; got %lld, %lld\n", claim, (long long)a, (long long)b);
        exit(1);
    }
}

static void *block(int64_t bytes)
{
    void *memory = malloc((size_t)bytes + (bytes == 0));
    if (memory == NULL) {
        fprintf(stderr, "selftest: no memory for %lld bytes\n", (long long)bytes);
        exit(1);
    }
    memset(memory, FILL, (size_t)bytes);
    return memory;
}

/* num_tokens rows at row_step bytes from one another, the first bytes of row i are i + first */
static char *filled_rows(int64_t num_tokens, int64_t row_bytes, int64_t row_step, int first)
{
    char *memory = block(num_tokens > 0 ? (num_tokens - 1) * row_step + row_bytes : 0);
    for (int64_t i = 0; i < num_tokens; i++)
        memset(memory + i * row_step, (int)(i + first), (size_t)row_bytes);
    return memory;
}

static void check_copies(int64_t num_slots, int64_t num_tokens, int64_t row_bytes, int64_t more)
{
    int64_t step = row_bytes + more, cache_bytes = num_slots > 0 ? (num_slots - 1) * step + row_bytes : 0;
    char *k_cache = block(cache_bytes), *v_cache = block(cache_bytes);
    char *k = filled_rows(num_tokens, row_bytes, step, 1), *v = filled_rows(num_tokens, row_bytes, step, 101);
    int32_t *slots = block(num_tokens * (int64_t)sizeof *slots);
    for (int64_t i = 0; i < num_tokens; i++)
        slots[i] = (int32_t)(num_slots - 1 - i);
    int64_t stored = minisgl_store_kv(k_cache, step, v_cache, step, num_slots, slots, num_tokens, k, step,
                                      v, step, row_bytes);
    expect(stored == -1, "store_kv returns -1", stored, num_tokens);
    char *k_out = block(num_tokens * row_bytes), *v_out = block(num_tokens * row_bytes);
    int64_t read = minisgl_gather_kv(k_cache, step, v_cache, step, num_slots, slots, num_tokens, k_out,
                                     v_out, row_bytes);
    expect(read == -1, "gather_kv returns -1", read, num_tokens);
    for (int64_t i = 0; i < num_tokens; i++) {
        expect(memcmp(k_out + i * row_bytes, k + i * step, (size_t)row_bytes) == 0, "k as stored", i, num_tokens);
        expect(memcmp(v_out + i * row_bytes, v + i * step, (size_t)row_bytes) == 0, "v as stored", i, num_tokens);
    }
    for (int64_t byte = 0; byte < cache_bytes; byte++)
        if (byte % step >= row_bytes || byte / step < num_slots - num_tokens)
            expect(k_cache[byte] == FILL && v_cache[byte] == FILL, "other slots unchanged", byte, num_slots);
    free(k_cache), free(v_cache), free(k), free(v), free(slots), free(k_out), free(v_out);
}

static void check_refusals(int32_t wrong_slot)
{
    int64_t num_slots = 4, row_bytes = 3;
    char *k_cache = block(num_slots * row_bytes), *v_cache = block(num_slots * row_bytes);
    char *k = block(2 * row_bytes), *v = block(2 * row_bytes);
    memset(k, 1, 6), memset(v, 2, 6);
    const int32_t slots[2] = {0, wrong_slot};
    int64_t at = minisgl_store_kv(k_cache, 3, v_cache, 3, num_slots, slots, 2, k, 3, v, 3, row_bytes);
    expect(at == 1, "store_kv names the wrong slot", at, wrong_slot);
    expect(k_cache[0] == FILL && v_cache[0] == FILL, "a refusal writes nothing", k_cache[0], v_cache[0]);
    at = minisgl_gather_kv(k_cache, 3, v_cache, 3, num_slots, slots, 2, k, v, row_bytes);
    expect(at == 1 && k[0] == 1 && v[0] == 2, "gather_kv names the wrong slot and writes nothing", at, k[0]);
    at = minisgl_store_kv(k_cache, 3, k_cache + 11, 3, num_slots, slots, 1, k, 3, v, 3, row_bytes);
    expect(at == -2, "store_kv refuses caches that overlap", at, -2);
    free(k_cache), free(v_cache), free(k), free(v);
}

static void check_beyond_32_bits(void)
{
    int64_t row_bytes = 1 << 16, num_slots = (1 << 16) + 2, bytes = num_slots * row_bytes;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *k_cache = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    char *v_cache = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (k_cache == MAP_FAILED || v_cache == MAP_FAILED) {
        fprintf(stderr, "selftest: cannot reserve two ranges of %lld bytes\n", (long long)bytes);
        exit(1);
    }
    char *k = filled_rows(1, row_bytes, row_bytes, 1), *v = filled_rows(1, row_bytes, row_bytes, 2);
    const int32_t slot = (int32_t)(num_slots - 1);
    minisgl_store_kv(k_cache, row_bytes, v_cache, row_bytes, num_slots, &slot, 1, k, 0, v, 0, row_bytes);
    char *last = k_cache + bytes - 1;
    expect(*last == 1 && v_cache[bytes - 1] == 2, "the last slot beyond 4 GiB is written", *last, slot);
    memset(k, FILL, (size_t)row_bytes);
    minisgl_gather_kv(k_cache, row_bytes, v_cache, row_bytes, num_slots, &slot, 1, k, v, row_bytes);
    expect(k[0] == 1 && k[row_bytes - 1] == 1, "the last slot beyond 4 GiB is read", k[0], slot);
    munmap(k_cache, (size_t)bytes), munmap(v_cache, (size_t)bytes);
    free(k), free(v);
}

static void check_compare_key(int64_t num_tokens)
{
    for (int64_t same = 0; same <= num_tokens; same++) {
        /* an odd address: keys are slices of bytes */
        char *a = block(num_tokens * 4 + 1), *b = block(num_tokens * 4 + 1);
        for (int64_t byte = 0; byte < 4 && same < num_tokens; byte++) {
            b[1 + same * 4 + byte] ^= 1;
            int64_t found = minisgl_compare_key(a + 1, b + 1, num_tokens);
            expect(found == same, "compare_key finds the first difference", found, same);
        }
        if (same == num_tokens)
            expect(minisgl_compare_key(a + 1, b + 1, num_tokens) == same, "equal keys", num_tokens, same);
        free(a), free(b);
    }
}

static int overflow(void)
{
    char *a = block(16), *b = block(16);
    int64_t found = minisgl_compare_key(a, b, 5);
    printf("selftest: nothing stopped a read beyond the key, found=%lld\n", (long long)found);
    free(a), free(b);
    return 0;
}

int main(int num_words, char **words)
{
    if (num_words > 1 && strcmp(words[1], "overflow") == 0)
        return overflow();
    for (int64_t num_slots = 0; num_slots <= 5; num_slots++)
        for (int64_t num_tokens = 0; num_tokens <= num_slots; num_tokens++)
            for (int64_t row_bytes = 0; row_bytes <= 67; row_bytes += row_bytes < 9 ? 1 : 29)
                for (int64_t more = row_bytes == 0; more <= 3; more += 3)
                    check_copies(num_slots, num_tokens, row_bytes, more);
    const int32_t wrong[] = {-1, 4, INT32_MIN, INT32_MAX};
    for (int i = 0; i < 4; i++)
        check_refusals(wrong[i]);
    check_beyond_32_bits();
    for (int64_t num_tokens = 0; num_tokens <= 50; num_tokens++)
        check_compare_key(num_tokens);
    printf("selftest: %ld checks passed\n", checks);
    return 0;
}
