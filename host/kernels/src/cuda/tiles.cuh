// Pieces of shared memory for the tensor cores' mma.sync m16n8k16 (bf16 in, f32 sums). D (head dimension) is defined at
// compile time: a multiple of 16, at most 128. Put behind mma.cuh and before the sources that use it.

#define LD (D + 8)            // row of shared memory: an odd number of 16-byte units, so that ldmatrix is conflict-free
#define CHUNKS (D / 8)        // 16-byte units of a row
#define KSTEPS (D / 16)
#define NTILES (D / 8)
#define LOG2E 1.4426950408889634f

// Byte offsets of this lane's row in the three ways a 16×16 piece of shared memory is read.
__device__ __forceinline__ u32 lane_a() { int l = threadIdx.x & 31; return ((l & 15) * LD + (l >> 4) * 8) * 2; }
__device__ __forceinline__ u32 lane_b() {
    int l = threadIdx.x & 31;
    return (((l & 7) + (l >> 4) * 8) * LD + ((l >> 3) & 1) * 8) * 2;
}

// Asks for `ROWS` rows of D elements; rows from `valid` on become zero.
template <int ROWS, int THREADS>
__device__ __forceinline__ void load_rows(u32 to, const bf16* from, long long stride, int valid) {
    constexpr int TOTAL = ROWS * CHUNKS;
#pragma unroll
    for (int i = 0; i < (TOTAL + THREADS - 1) / THREADS; i++) {
        int c = i * THREADS + threadIdx.x;
        if (TOTAL % THREADS == 0 || c < TOTAL) {
            int row = c / CHUNKS, col = c % CHUNKS;
            bool ok = row < valid;
            copy16(to + (row * LD + col * 8) * 2, from + (ok ? row : 0) * stride + col * 8, ok);
        }
    }
}

// c[MT][NT] += rows of a (16·MT rows at `a`) × rows of b (8·NT rows at `b`), both read along D.
template <int MT, int NT>
__device__ __forceinline__ void scores(float (*c)[NT][4], u32 a, u32 b) {
#pragma unroll
    for (int k = 0; k < KSTEPS; k++) {
        u32 fa[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) ldmatrix(a + (m * 16 * LD + k * 16) * 2, fa[m]);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            u32 fb[4];
            ldmatrix(b + (n * 8 * LD + k * 16) * 2, fb);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(c[m][n], fa[m], fb);
                mma(c[m][n + 1], fa[m], fb + 2);
            }
        }
    }
}

// c[MT][NTILES] += w[MT][KT] (16-column pieces held in registers) × rows of b (16·KT rows), read across rows.
template <int MT, int KT>
__device__ __forceinline__ void weighted(float (*c)[NTILES][4], u32 (*w)[KT][4], u32 b) {
#pragma unroll
    for (int k = 0; k < KT; k++) {
#pragma unroll
        for (int n = 0; n < NTILES; n += 2) {
            u32 fb[4];
            ldmatrix_t(b + (k * 16 * LD + n * 8) * 2, fb);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(c[m][n], w[m][k], fb);
                mma(c[m][n + 1], w[m][k], fb + 2);
            }
        }
    }
}

// A 16×16 piece of results as the left operand of the next product.
__device__ __forceinline__ void as_operand(u32* a, const float* left, const float* right) {
    a[0] = pack_bf16(left[0], left[1]);
    a[1] = pack_bf16(left[2], left[3]);
    a[2] = pack_bf16(right[0], right[1]);
    a[3] = pack_bf16(right[2], right[3]);
}

template <int MT, int NT>
__device__ __forceinline__ void clear(float (*c)[NT][4]) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) c[m][n][i] = 0.0f;
}

