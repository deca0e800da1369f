// Low-rank additions to a layer's matrices, each row's own: y += B · (A · x), sums in f32. An adapter is a table on the GPU, for
// each layer and each of MATRICES {address of A [rank, in], address of B [out, rank], rank}, zeros where a matrix has none. A
// row's bits do not depend on the rows beside it.
//
// TILE: rows of a block, of which those that follow each other with the same adapter read its factors once.

#define MATRICES 7
#define MOST_PARTS 3

// What is added to: `count` matrices from `first` on, and where in a row of y the results of each begin and how wide they are.
struct Parts { int first, count, start[MOST_PARTS], width[MOST_PARTS]; };
struct Pair { const real *a, *b; int rank; };

__device__ __forceinline__ Pair pair_of(const u64* adapters, const int* seq, int sequences, int row, int rows, int layer, int matrix) {
    int s = row < rows ? seq[row] : -1;
    u64 table = (u32)s < (u32)sequences ? adapters[s] : 0;
    if (table == 0) return {nullptr, nullptr, 0};
    const u64* entry = (const u64*)table + (layer * MATRICES + matrix) * 3;
    return {(const real*)entry[0], (const real*)entry[1], (int)entry[2]};
}

// The end of the run of rows from `first` on that have the same factors.
template <int TILE> __device__ __forceinline__ int run_end(const Pair* pairs, int first) {
    int end = first + 1;
    while (end < TILE && pairs[end].a == pairs[first].a) end++;
    return end;
}

// low[row][part][r] = A · x. One block for TILE rows and a part.
template <int TILE> __device__ __forceinline__ void
down(const real* __restrict__ x, const u64* __restrict__ adapters, const int* __restrict__ seq, float* __restrict__ low, int rows,
              int sequences, int layer, int width, long long stride, int most_rank, Parts parts) {
    __shared__ Pair pairs[TILE];
    int row0 = blockIdx.x * TILE, part = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x < TILE) pairs[threadIdx.x] = pair_of(adapters, seq, sequences, row0 + threadIdx.x, rows, layer, parts.first + part);
    __syncthreads();
    for (int first = 0; first < TILE;) {
        int end = run_end<TILE>(pairs, first), rank = min(pairs[first].rank, most_rank);
        for (int r = warp; r < rank; r += 8) {
            const real* a = pairs[first].a + (long long)r * width;
            float sums[TILE];
#pragma unroll
            for (int j = 0; j < TILE; j++) sums[j] = 0.0f;
#pragma unroll 4
            for (int c = lane * 8; c < width; c += 256) {
                float v[8], w[8];
                load8(a + c, w);
#pragma unroll
                for (int j = 0; j < TILE; j++)
                    if (j >= first && j < end) {
                        load8(x + (row0 + j) * stride + c, v);
#pragma unroll
                        for (int i = 0; i < 8; i++) sums[j] = fmaf(v[i], w[i], sums[j]);
                    }
            }
#pragma unroll
            for (int j = 0; j < TILE; j++)
                if (j >= first && j < end) {
                    float sum = warp_sum(sums[j]);
                    if (lane == 0) low[((long long)(row0 + j) * parts.count + part) * most_rank + r] = sum;
                }
        }
        first = end;
    }
}

// y += B · low. One block for TILE rows and 256 columns of a part.
template <int TILE> __device__ __forceinline__ void
up(real* __restrict__ y, const u64* __restrict__ adapters, const int* __restrict__ seq, const float* __restrict__ low, int rows,
            int sequences, int layer, long long stride, int most_rank, Parts parts) {
    __shared__ Pair pairs[TILE];
    int row0 = blockIdx.x * TILE, part = blockIdx.y % parts.count, c = blockIdx.y / parts.count * 256 + threadIdx.x;
    if (threadIdx.x < TILE) pairs[threadIdx.x] = pair_of(adapters, seq, sequences, row0 + threadIdx.x, rows, layer, parts.first + part);
    __syncthreads();
    if (c >= parts.width[part]) return;
    for (int first = 0; first < TILE;) {
        int end = run_end<TILE>(pairs, first), rank = min(pairs[first].rank, most_rank);
        if (rank > 0) {
            const real* b = pairs[first].b + (long long)c * rank;
            float sums[TILE];
#pragma unroll
            for (int j = 0; j < TILE; j++) sums[j] = 0.0f;
            auto add = [&](int r, float w) {
#pragma unroll
                for (int j = 0; j < TILE; j++)
                    if (j >= first && j < end)
                        sums[j] = fmaf(low[((long long)(row0 + j) * parts.count + part) * most_rank + r], w, sums[j]);
            };
            if (rank % 8 == 0) {
#pragma unroll 2
                for (int r = 0; r < rank; r += 8) {
                    float w[8];
                    load8(b + r, w);
#pragma unroll
                    for (int i = 0; i < 8; i++) add(r + i, w[i]);
                }
            } else {
                for (int r = 0; r < rank; r++) add(r, of_real(b[r]));
            }
#pragma unroll
            for (int j = 0; j < TILE; j++)
                if (j >= first && j < end) {
                    real* at = y + (row0 + j) * stride + parts.start[part] + c;
                    *at = to_real(of_real(*at) + sums[j]);
                }
        }
        first = end;
    }
}

#define LOW_RANK(NAME, TILE)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) low_rank_down_##NAME(                                                       \
        const real* x, const u64* adapters, const int* seq, float* low, int rows, int sequences, int layer, int width,            \
        long long stride, int most_rank, Parts parts) {                                                                           \
        down<TILE>(x, adapters, seq, low, rows, sequences, layer, width, stride, most_rank, parts);                               \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) low_rank_up_##NAME(                                                         \
        real* y, const u64* adapters, const int* seq, const float* low, int rows, int sequences, int layer, long long stride,     \
        int most_rank, Parts parts) {                                                                                             \
        up<TILE>(y, adapters, seq, low, rows, sequences, layer, stride, most_rank, parts);                                        \
    }
LOW_RANK(few, 1)
LOW_RANK(many, 8)
