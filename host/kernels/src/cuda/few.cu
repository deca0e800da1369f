// Products of at most eight rows, as in decoding: out[m, n] = x[m, k] · w[n, k]ᵀ in bf16 with f32 sums, by mma.sync m16n8k16. Every weight
// is read once, from memory right into the fragments: a product's terms may come in any order as long as both factors agree,
// so a thread's eight neighbours in k stand for what the fragments call k = 2t, 2t + 1, 2t + 8, 2t + 9 of two products.
//
// One block makes 8 or 16 columns; its warps take turns in chunks of 32 k and are summed in a fixed order. A row's
// bits do not depend on the number of rows.

#define WARPS 8
#define CHUNK 32

__device__ __forceinline__ void mma(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Weights pass through once: they need no place in the first cache.
__device__ __forceinline__ uint4 stream8(const bf16* p) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

enum { REAL, SWIGLU, FLOAT };

// COLUMNS: 8 or 16 columns a block. SWIGLU takes 8 columns of gate and the 8 of up, n further, with them.
template <int COLUMNS, int KIND>
__device__ __forceinline__ void few(const bf16* __restrict__ x, const bf16* __restrict__ w, const bf16* __restrict__ onto,
                                    void* __restrict__ out, int m, int n, int k, int x_stride, int w_stride, int out_stride) {
    __shared__ float parts[WARPS][8][COLUMNS];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    int first = blockIdx.x * (KIND == SWIGLU ? 8 : COLUMNS);
    const uint4 none = make_uint4(0, 0, 0, 0);
    // Columns behind the last one are made of it and left out below.
    const bf16* low = w + (long long)min(first + g, n - 1) * w_stride;
    const bf16* high = w + (long long)(KIND == SWIGLU ? first + g + n : min(first + g + 8, n - 1)) * w_stride;
    float sums[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int c = warp * CHUNK + t * 8; c < k + t * 8; c += WARPS * CHUNK) {
        bool in = c < k;
        uint4 a = in ? stream8(low + c) : none, b = COLUMNS == 16 && in ? stream8(high + c) : none;
        uint4 v = in && g < m ? *(const uint4*)(x + (long long)g * x_stride + c) : none;
        mma(sums, a.x, b.x, a.y, b.y, v.x, v.y);
        mma(sums, a.z, b.z, a.w, b.w, v.z, v.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int column = g + (i >> 1) * 8;
        if (column < COLUMNS) parts[warp][t * 2 + (i & 1)][column] = sums[i];
    }
    __syncthreads();
    constexpr int OUT = KIND == SWIGLU ? 8 : COLUMNS;
    for (int i = threadIdx.x; i < m * OUT; i += WARPS * 32) {
        int row = i / OUT, column = i % OUT;
        if (first + column >= n) continue;
        auto sum = [&](int column) {
            float s[WARPS];
#pragma unroll
            for (int p = 0; p < WARPS; p++) s[p] = parts[p][row][column];
            return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
        };
        long long at = (long long)row * out_stride + first + column;
        float y = sum(column);
        if (KIND == FLOAT) {
            ((float*)out)[at] = y;
        } else if (KIND == SWIGLU) {
            // Rounded as if gate and up had been stored.
            float gate = to_f32(to_bf16(y)), up = to_f32(to_bf16(sum(column + 8)));
            ((bf16*)out)[at] = to_bf16(gate * sigmoid(gate) * up);
        } else {
            ((bf16*)out)[at] = to_bf16(onto ? y + to_f32(onto[at]) : y);
        }
    }
}

#define FEW(NAME, COLUMNS, KIND)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32)                                                                      \
    NAME(const bf16* __restrict__ x, const bf16* __restrict__ w, const bf16* __restrict__ onto, void* __restrict__ out, int m,    \
         int n, int k, int x_stride, int w_stride, int out_stride) {                                                              \
        few<COLUMNS, KIND>(x, w, onto, out, m, n, k, x_stride, w_stride, out_stride);                                             \
    }
FEW(few_narrow, 8, REAL)
FEW(few_wide, 16, REAL)
FEW(few_swiglu, 16, SWIGLU)
FEW(few_float, 16, FLOAT)
