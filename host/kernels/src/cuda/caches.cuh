// Caches of keys and values of sequences that are being decoded, in pages of [layers][2 = keys, values][PAGE][width] of `real`
// that a table for each sequence names: which entries a row sees, storing new ones, and putting the parts of a long context
// together. Put before the sources that attend to them. Rows that attend by themselves cut contexts every CHUNK entries,
// whatever else is in the batch, so their bits depend on nothing else.

#define PAGE 64
#define CHUNK 512          // entries of a context that one block takes: whole pages
#define MOST_GROUP 16      // query heads that share a key/value head
#define PART (D + 2)       // floats of a chunk's part: Σ exp(s − top) · v, top, Σ exp(s − top)

// Entries that a row sees, itself included: 0 if its sequence is unknown or its position outside the cache or `longest`.
__device__ __forceinline__ int entries(const int* capacities, const int* seq, const int* position, int sequences, int row, int longest) {
    int s = seq[row], p = position[row];
    if ((u32)s >= (u32)sequences || p < 0 || p >= longest || p >= capacities[s]) return 0;
    return p + 1;
}
// The address of the page of a sequence's entry.
__device__ __forceinline__ u64 page_of(const u64* tables, int s, int entry) { return ((const u64*)tables[s])[entry / PAGE]; }
// The keys of a layer in a page; its values are PAGE rows behind them.
__device__ __forceinline__ real* keys_in(u64 page, int layer, int width) { return (real*)page + 2LL * layer * PAGE * width; }

// Writes addresses of pages into tables: pairs of where one belongs and the page's.
extern "C" __global__ void __launch_bounds__(256) cache_pages(const u64* __restrict__ pairs, int count) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < count) *(u64*)pairs[2 * i] = pairs[2 * i + 1];
}

// One thread per 8 elements of k, and the same of v.
extern "C" __global__ void __launch_bounds__(256)
cache_store(const real* __restrict__ k, const real* __restrict__ v, const u64* __restrict__ tables, const int* __restrict__ capacities,
            const int* __restrict__ seq, const int* __restrict__ position, int sequences, int layer, long long units, int width,
            long long k_stride, long long v_stride) {
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= units) return;
    int row = i / (width / 8), c = i % (width / 8) * 8;
    int n = entries(capacities, seq, position, sequences, row, 0x7fffffff);
    if (n == 0) return;
    real* to = keys_in(page_of(tables, seq[row], n - 1), layer, width) + (n - 1) % PAGE * width + c;
    put8(to, get8(k + row * k_stride + c));
    put8(to + PAGE * width, get8(v + row * v_stride + c));
}

// Where the part of a chunk of a row's head lies.
__device__ __forceinline__ float* part(float* scratch, int row, int head, int heads, int chunk, int chunks) {
    return scratch + (((long long)row * heads + head) * chunks + chunk) * PART;
}

// Puts the chunks of rows with more than one together. One block per row and head.
extern "C" __global__ void __launch_bounds__(128)
cache_combine(const int* __restrict__ capacities, const int* __restrict__ seq, const int* __restrict__ position, int sequences,
              real* __restrict__ out, float* __restrict__ scratch, int heads, int chunks, int longest) {
    int row = blockIdx.x / heads, head = blockIdx.x % heads, c = threadIdx.x;
    int count = (entries(capacities, seq, position, sequences, row, longest) + CHUNK - 1) / CHUNK;
    if (count < 2) return;
    const float* from = part(scratch, row, head, heads, 0, chunks);
    float top = -INF, sums[4] = {0, 0, 0, 0}, totals[4] = {0, 0, 0, 0}; // every fourth chunk has its own
    for (int i = 0; i < count; i++) top = fmaxf(top, from[i * PART + D]);
#pragma unroll 2
    for (int first = 0; first < count; first += 4)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (first + j >= count) continue;
            const float* p = from + (first + j) * PART;
            float w = expf(p[D] - top);
            sums[j] = fmaf(w, p[D + 1], sums[j]);
            if (c < D) totals[j] = fmaf(w, p[c], totals[j]);
        }
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]), total = (totals[0] + totals[1]) + (totals[2] + totals[3]);
    if (c < D) out[((long long)row * heads + head) * D + c] = to_real(total / sum);
}
