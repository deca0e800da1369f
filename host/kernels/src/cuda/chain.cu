// Products whose every element is one chain of sums: out[m, n] = onto + x[m, k] · w[n, k]ᵀ in bf16, by mma.sync m16n8k16 over
// ascending k into one accumulator. So an element's bits depend on its row of x and its row of w only, whatever the shape of the
// tiles and the number of rows. What cuBLASLt computes is held against it.

// A block makes 16·MT rows and 8·NT·WARPS columns, BK of k at a time, STAGES of them on their way.
template <int MT, int NT, int WARPS, int BK, int STAGES, bool FLOAT>
__device__ __forceinline__ void chain(const bf16* __restrict__ x, const bf16* __restrict__ w, const bf16* __restrict__ onto,
                                      void* __restrict__ out, int m, int n, int k, int x_stride, int w_stride, int out_stride) {
    constexpr int ROWS = 16 * MT, COLUMNS = 8 * NT * WARPS, LINE = BK + 8, UNITS = BK / 8, THREADS = 32 * WARPS;
    constexpr u32 STAGE = (ROWS + COLUMNS) * LINE * 2;
    extern __shared__ __align__(128) bf16 shared[];
    u32 base = smem_addr(shared);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row0 = blockIdx.y * ROWS, column0 = blockIdx.x * COLUMNS;
    int count = (k + BK - 1) / BK;
    auto load = [&](int t) {
        u32 to = base + t % STAGES * STAGE;
        for (int i = threadIdx.x; i < (ROWS + COLUMNS) * UNITS; i += THREADS) {
            int r = i / UNITS, c = t * BK + i % UNITS * 8;
            bool left = r < ROWS, in = c < k && (left ? row0 + r < m : column0 + r - ROWS < n);
            const bf16* from = left ? x + (long long)(row0 + r) * x_stride : w + (long long)(column0 + r - ROWS) * w_stride;
            copy16(to + (r * LINE + i % UNITS * 8) * 2, in ? from + c : x, in);
        }
    };
    for (int t = 0; t < STAGES - 1; t++) {
        if (t < count) load(t);
        copy_commit();
    }
    float sums[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[i][j][e] = 0.0f;
    u32 at_x = ((lane & 15) * LINE + (lane >> 4) * 8) * 2;
    u32 at_w = ((ROWS + warp * 8 * NT + (lane & 7)) * LINE + ((lane >> 3) & 1) * 8) * 2;
    for (int t = 0; t < count; t++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (t + STAGES - 1 < count) load(t + STAGES - 1);
        copy_commit();
        u32 stage = base + t % STAGES * STAGE;
#pragma unroll
        for (int s = 0; s < BK / 16; s++) {
            u32 a[MT][4];
#pragma unroll
            for (int i = 0; i < MT; i++)
                ldmatrix(stage + at_x + (i * 16 * LINE + s * 16) * 2, a[i]);
#pragma unroll
            for (int j = 0; j < NT; j++) {
                u32 b[2];
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                             : "=r"(b[0]), "=r"(b[1]) : "r"(stage + at_w + (j * 8 * LINE + s * 16) * 2));
#pragma unroll
                for (int i = 0; i < MT; i++) mma(sums[i][j], a[i], b);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = row0 + i * 16 + (e >> 1) * 8 + (lane >> 2), c = column0 + (warp * NT + j) * 8 + (lane & 3) * 2 + (e & 1);
                if (r >= m || c >= n) continue;
                long long at = (long long)r * out_stride + c;
                if (FLOAT) ((float*)out)[at] = sums[i][j][e];
                else ((bf16*)out)[at] = to_bf16(onto ? sums[i][j][e] + to_f32(onto[at]) : sums[i][j][e]);
            }
}

#define CHAIN(NAME, MT, NT, WARPS, BK, STAGES, FLOAT)                                                                             \
    extern "C" __global__ void __launch_bounds__(WARPS * 32)                                                                      \
    NAME(const bf16* __restrict__ x, const bf16* __restrict__ w, const bf16* __restrict__ onto, void* __restrict__ out, int m,    \
         int n, int k, int x_stride, int w_stride, int out_stride) {                                                              \
        chain<MT, NT, WARPS, BK, STAGES, FLOAT>(x, w, onto, out, m, n, k, x_stride, w_stride, out_stride);                        \
    }
CHAIN(chain_16, 1, 1, 2, 256, 4, false)
CHAIN(chain_16_float, 1, 1, 2, 256, 4, true)
CHAIN(chain_64, 4, 1, 2, 64, 4, false)
CHAIN(chain_64_float, 4, 1, 2, 64, 4, true)
CHAIN(chain_many, 4, 4, 4, 64, 3, false)
CHAIN(chain_many_float, 4, 4, 4, 64, 3, true)

// Rows of numbers in (−scale, scale) that look random; the second half of a row is the first one times `again`. Products of rows with
// `again` 1 and −1 cancel, so that all that is left is how sums were rounded, which tells their order.
extern "C" __global__ void __launch_bounds__(256) chain_sample(bf16* __restrict__ to, int count, int width, float scale, float again, u32 seed) {
    int i = blockIdx.x * 256 + threadIdx.x, half = width / 2, second = i % width >= half;
    if (i >= count) return;
    u32 x = (second ? i - half : i) * 0x9e3779b9u ^ seed;
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    x ^= x >> 16;
    to[i] = to_bf16((int)x * 4.656612873e-10f * scale * (second ? again : 1.0f));
}
// Counts words that differ.
extern "C" __global__ void __launch_bounds__(256)
chain_differ(const u32* __restrict__ a, const u32* __restrict__ b, int count, u32* __restrict__ differ) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < count && a[i] != b[i]) atomicAdd(differ, 1u);
}
