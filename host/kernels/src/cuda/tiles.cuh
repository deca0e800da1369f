// Pieces of shared memory for the tensor cores' mma.sync m16n8k16 (bf16 in, f32 sums). D (head dimension) is defined at
// compile time: a multiple of 16, at most 128. Put before the sources that use it.

#define LD (D + 8)            // row of shared memory: an odd number of 16-byte units, so that ldmatrix is conflict-free
#define CHUNKS (D / 8)        // 16-byte units of a row
#define KSTEPS (D / 16)
#define NTILES (D / 8)
#define LOG2E 1.4426950408889634f

__device__ __forceinline__ u32 smem_addr(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(u32 to, const void* from, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }

__device__ __forceinline__ void ldmatrix(u32 addr, u32* r) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr));
}
__device__ __forceinline__ void ldmatrix_t(u32 addr, u32* r) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr));
}
__device__ __forceinline__ void mma(float* c, const u32* a, const u32* b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

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

