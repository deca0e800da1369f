// Causal attention of packed documents on Hopper's warpgroup products (wgmma, bf16 in, f32 sums); needs sm_90a.
//
// The same functions as attention.cu with the same arguments but for the tile of keys in the backward pass: 128 rows.
// D is 64 or 128. Tiles lie in shared memory as panels of 64 columns, rows of 128 bytes, 16-byte units exchanged by
// their row (the 128-byte swizzle that the products read). Two warpgroups own 64 rows each; a third copies what both read into
// a ring of stages, so that each of the two goes on as soon as its own tile is there and they fill each other's gaps.

#define WORKERS 256 // threads that compute
#define LOADERS 128 // threads that copy, after them
#define THREADS (LOADERS + WORKERS)
#define STAGES 2 // of keys and of values in the forward pass
#define LOG2E 1.4426950408889634f

__device__ __forceinline__ u32 smem_base() {
    extern __shared__ __align__(1024) char shared[];
    return ((u32)__cvta_generic_to_shared(shared) + 1023) & ~1023u;
}

// Barriers of a ring of N stages: `full` counts the loaders' arrivals, `empty` the workers'.
template <int N> struct Ring { u64 full[N], empty[N]; };
__device__ __forceinline__ u32 address(const u64* barrier) { return (u32)__cvta_generic_to_shared(barrier); }
template <int N> __device__ __forceinline__ void ring_init(Ring<N>& r, int loaders, int workers) {
    if (threadIdx.x == 0)
        for (int i = 0; i < N; i++) {
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(r.full + i)), "r"(loaders) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(r.empty + i)), "r"(workers) : "memory");
        }
}
__device__ __forceinline__ void arrive(const u64* barrier) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(address(barrier)) : "memory");
}
__device__ __forceinline__ void wait(const u64* barrier, int parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @p bra done; bra again; done: }"
                 ::"r"(address(barrier)), "r"(parity) : "memory");
}
// A worker waits for step t of a ring; what was copied is then visible to the products too.
template <int N> __device__ __forceinline__ void wait_full(Ring<N>& r, int t) {
    wait(r.full + t % N, (t / N) & 1);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// A worker's warp gives the stage of step t back.
template <int N> __device__ __forceinline__ void give_back(Ring<N>& r, int t) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) arrive(r.empty + t % N);
}
// A loader waits for the stage of step t to be free.
template <int N> __device__ __forceinline__ void wait_empty(Ring<N>& r, int t) {
    if (t >= N) wait(r.empty + t % N, (t / N + 1) & 1);
}
// A loader arrives at step t once everything that it asked for is there.
template <int N> __device__ __forceinline__ void arrive_copied(Ring<N>& r, int t) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address(r.full + t % N)) : "memory");
}
// The barrier of what a block keeps over a whole tile: workers arrive when they are through with it, the loader waits
// before it copies the next tile's.
__device__ __forceinline__ void own_init(u64* own) {
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(own)), "r"(WORKERS / 32) : "memory");
}
__device__ __forceinline__ void own_done(u64* own) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) arrive(own);
}
__device__ __forceinline__ void own_wait(u64* own, int round) {
    if (round > 0) wait(own, (round + 1) & 1);
}
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ void copy16(u32 to, const void* from, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// A loader's part of ROWS rows of D elements as panels; rows from `valid` on become zero.
template <int ROWS> __device__ __forceinline__ void load_rows(u32 to, const bf16* from, long long stride, int valid) {
    int id = threadIdx.x - WORKERS, unit = id % (D / 8), first = id / (D / 8);
    from += unit * 8;
#pragma unroll 8
    for (int row = first; row < ROWS; row += LOADERS / (D / 8)) {
        bool ok = row < valid;
        copy16(to + (unit / 8) * ROWS * 128 + row * 128 + (((unit & 7) ^ (row & 7)) << 4), from + (ok ? row : 0) * stride, ok);
    }
}

#define LOADER_REGISTERS asm volatile("setmaxnreg.dec.sync.aligned.u32 56;")
#define WORKER_REGISTERS asm volatile("setmaxnreg.inc.sync.aligned.u32 224;")

// A block's item of a round: tiles come by falling cost, so every second round runs backwards to even out the sums.
__device__ __forceinline__ int item(int round) {
    return round * gridDim.x + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

// Names a swizzled operand: 8-row groups are 1024 bytes apart; `panel` is the distance of panels, used across rows only.
// `more` bytes further on, in the address's part alone, so that only that part is computed.
__device__ __forceinline__ u64 operand(u32 address, u32 panel, u32 more) {
    u64 name;
    asm("mov.b64 %0, {%1, %2};" : "=l"(name) : "r"((address >> 4 | panel << 12) + (more >> 4)), "r"(1024u >> 4 | 1u << 30));
    return name;
}
// The thread's warpgroup, known to be the same for a whole warp, as operands must be.
__device__ __forceinline__ int warpgroup() { return __shfl_sync(0xffffffffu, (int)threadIdx.x >> 7, 0); }
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Keeps the compiler from using results before the wait above it.
template <int N> __device__ __forceinline__ void results(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// d[64 × N] += a · b for one step of 16. `s`: a and b from shared memory, both read along rows, `first` without what d
// held before; `r`: a from registers and b from shared memory, read across rows.
__device__ __forceinline__ void wgmma_first64(float (&d)[32], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, %32, %33, p, 1, 1, 0, 0; }"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
                   "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
                   "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
                   "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
                 : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_s64(float (&d)[32], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, %32, %33, p, 1, 1, 0, 0; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_first128(float (&d)[64], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, %64, %65, p, 1, 1, 0, 0; }"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
                   "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
                   "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
                   "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31]),
                   "=f"(d[32]), "=f"(d[33]), "=f"(d[34]), "=f"(d[35]), "=f"(d[36]), "=f"(d[37]), "=f"(d[38]), "=f"(d[39]),
                   "=f"(d[40]), "=f"(d[41]), "=f"(d[42]), "=f"(d[43]), "=f"(d[44]), "=f"(d[45]), "=f"(d[46]), "=f"(d[47]),
                   "=f"(d[48]), "=f"(d[49]), "=f"(d[50]), "=f"(d[51]), "=f"(d[52]), "=f"(d[53]), "=f"(d[54]), "=f"(d[55]),
                   "=f"(d[56]), "=f"(d[57]), "=f"(d[58]), "=f"(d[59]), "=f"(d[60]), "=f"(d[61]), "=f"(d[62]), "=f"(d[63])
                 : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_s128(float (&d)[64], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, %64, %65, p, 1, 1, 0, 0; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_r64(float (&d)[32], const u32* a, u64 b) {
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_r128(float (&d)[64], const u32* a, u64 b) {
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#if D == 128
#define wgmma_rd wgmma_r128
#else
#define wgmma_rd wgmma_r64
#endif
#define OUT (D / 2) // results of 64 × D that one thread holds

// c[64 × 8N] = 64 rows at `a` · rows at `b`ᵀ, along D. Panels of a and b are `pa` and `pb` bytes apart.
__device__ __forceinline__ void scores(float (&c)[32], u32 a, u32 pa, u32 b, u32 pb) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        u64 x = operand(a, 16, (k / 4) * pa + (k % 4) * 32), y = operand(b, 16, (k / 4) * pb + (k % 4) * 32);
        if (k == 0) wgmma_first64(c, x, y);
        else wgmma_s64(c, x, y);
    }
}
__device__ __forceinline__ void scores(float (&c)[64], u32 a, u32 pa, u32 b, u32 pb) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        u64 x = operand(a, 16, (k / 4) * pa + (k % 4) * 32), y = operand(b, 16, (k / 4) * pb + (k % 4) * 32);
        if (k == 0) wgmma_first128(c, x, y);
        else wgmma_s128(c, x, y);
    }
}
// c[64 × D] += w[64 × 16·STEPS] · rows at `b`, whose panels are `pb` bytes apart.
template <int STEPS> __device__ __forceinline__ void weighted(float (&c)[OUT], const u32 (*w)[4], u32 b, u32 pb) {
#pragma unroll
    for (int k = 0; k < STEPS; k++) wgmma_rd(c, w[k], operand(b, pb, k * 16 * 128));
}
// Results as the left operand of the next product.
template <int STEPS> __device__ __forceinline__ void as_operand(u32 (*w)[4], const float* c) {
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) w[k][i] = pack_bf16(c[k * 8 + i * 2], c[k * 8 + i * 2 + 1]);
}
// Writes this warpgroup's 64 rows times a factor per half; rows from `valid` on are left alone.
__device__ __forceinline__ void store_rows(bf16* to, long long stride, const float* c, int row, int valid, float low, float high) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row + h * 8;
        float factor = h ? high : low;
        if (r < valid) {
            bf16* p = to + (long long)r * stride + (lane & 3) * 2;
#pragma unroll
            for (int n = 0; n < D / 8; n++) *(u32*)(p + n * 8) = pack_bf16(c[n * 4 + h * 2] * factor, c[n * 4 + h * 2 + 1] * factor);
        }
    }
}

#define ROWS 128 // of queries (forward, dq) or keys (dk, dv) that a block owns

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_forward(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v, bf16* __restrict__ out,
                  float* __restrict__ lse, const int4* __restrict__ tiles, int work, int heads, int group, int tokens,
                  long long q_stride, long long k_stride, long long v_stride, long long out_stride, float scale) {
    constexpr int KEYS = 128;
    constexpr u32 TILE = KEYS * D * 2, PANEL = KEYS * 128;
    int lane = threadIdx.x & 31;
    u32 sq = smem_base(), sk = sq + ROWS * D * 2, sv = sk + 2 * TILE, my_q = sq + warpgroup() * 64 * 128;
    __shared__ Ring<STAGES> keys, values;
    ring_init(keys, LOADERS, WORKERS / 32);
    ring_init(values, LOADERS, WORKERS / 32);
    __shared__ u64 own; // queries
    own_init(&own);
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        LOADER_REGISTERS;
        for (int n = item(0), round = 0, step = 0; n < work; n = item(++round)) {
            int4 tile = tiles[n / heads];
            int head = n % heads, kv_head = head / group, start = tile.x, len = tile.y, row0 = tile.z;
            const bf16* from_k = k + (long long)start * k_stride + kv_head * D;
            const bf16* from_v = v + (long long)start * v_stride + kv_head * D;
            own_wait(&own, round);
            load_rows<ROWS>(sq, q + (long long)(start + row0) * q_stride + head * D, q_stride, len - row0);
            for (int first = 0; first < min(len, row0 + ROWS); first += KEYS, step++) {
                u32 stage = step % STAGES * TILE;
                wait_empty(keys, step);
                load_rows<KEYS>(sk + stage, from_k + (long long)first * k_stride, k_stride, len - first);
                arrive_copied(keys, step);
                wait_empty(values, step);
                load_rows<KEYS>(sv + stage, from_v + (long long)first * v_stride, v_stride, len - first);
                arrive_copied(values, step);
            }
        }
        copies_done();
        return;
    }
    WORKER_REGISTERS;

    for (int n = item(0), round = 0, base = 0; n < work; n = item(++round)) {
        int4 tile = tiles[n / heads];
        int head = n % heads, start = tile.x, len = tile.y, row0 = tile.z;
        int first_row = row0 + warpgroup() * 64, row = row0 + (threadIdx.x >> 5) * 16 + (lane >> 2);
        int count = (min(len, row0 + ROWS) + KEYS - 1) / KEYS;
        float o[OUT], s[64], max_[2] = {-INF, -INF}, sum[2] = {0.0f, 0.0f}, old[2];
        u32 p[8][4];
        float c2 = scale * LOG2E;
    #pragma unroll
        for (int i = 0; i < OUT; i++) o[i] = 0.0f;

        // Turns scores of the keys from `first` on to weights, moves the maximum and leaves what earlier sums shrink by.
        auto softmax = [&](int first) {
            if (first + KEYS > first_row) {
    #pragma unroll
                for (int n = 0; n < 16; n++)
    #pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (first + n * 8 + (lane & 3) * 2 + (i & 1) > row + (i >> 1) * 8) s[n * 4 + i] = -INF;
            }
    #pragma unroll
            for (int h = 0; h < 2; h++) {
                float top = max_[h];
    #pragma unroll
                for (int n = 0; n < 16; n++) top = fmaxf(top, fmaxf(s[n * 4 + h * 2], s[n * 4 + h * 2 + 1]));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                float shift = top * c2, add = 0.0f;
                old[h] = exp2_fast(max_[h] * c2 - shift);
                max_[h] = top;
    #pragma unroll
                for (int n = 0; n < 16; n++)
    #pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float e = exp2_fast(fmaf(s[n * 4 + h * 2 + i], c2, -shift));
                        s[n * 4 + h * 2 + i] = e;
                        add += e;
                    }
                sum[h] = sum[h] * old[h] + add;
            }
        };

        wait_full(keys, base);
        products_begin();
        scores(s, my_q, ROWS * 128, sk + base % STAGES * TILE, PANEL);
        products_commit();
        products_wait<0>();
        results(s);
        give_back(keys, base);
        softmax(0);
        as_operand<8>(p, s);

        for (int t = 1; t < count; t++) {
            wait_full(keys, base + t);
            products_begin();
            scores(s, my_q, ROWS * 128, sk + (base + t) % STAGES * TILE, PANEL);
            products_commit();
            wait_full(values, base + t - 1);
            weighted<8>(o, p, sv + (base + t - 1) % STAGES * TILE, PANEL);
            products_commit();
            products_wait<1>();
            results(s);
            give_back(keys, base + t);
            softmax(t * KEYS);
            products_wait<0>();
            results(o);
            give_back(values, base + t - 1);
    #pragma unroll
            for (int i = 0; i < OUT; i++) o[i] *= old[(i >> 1) & 1];
            as_operand<8>(p, s);
        }
        own_done(&own);
        wait_full(values, base + count - 1);
        products_begin();
        weighted<8>(o, p, sv + (base + count - 1) % STAGES * TILE, PANEL);
        products_commit();
        products_wait<0>();
        results(o);
        give_back(values, base + count - 1);

        float inv[2];
    #pragma unroll
        for (int h = 0; h < 2; h++) {
            float total = sum[h];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            int r = row + h * 8;
            if ((lane & 3) == 0 && r < len) lse[(long long)head * tokens + start + r] = max_[h] * scale + logf(total);
            inv[h] = 1.0f / total;
        }
        store_rows(out + (long long)start * out_stride + head * D, out_stride, o, row, len, inv[0], inv[1]);
        base += count;
    }
}

#define STEP 64 // queries (dk, dv) or keys (dq) taken at a time in the backward pass
#define STEP_STAGES 3
// dk and dv of 128 keys of one key/value head, over all query heads of its group and all later queries.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_backward_kv(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v,
                      const bf16* __restrict__ dout, const float* __restrict__ lse, const float* __restrict__ delta,
                      bf16* __restrict__ dk, bf16* __restrict__ dv, const int4* __restrict__ tiles, int work, int kv_heads,
                      int group, int tokens, long long q_stride, long long k_stride, long long v_stride, long long dout_stride,
                      long long dk_stride, long long dv_stride, float scale) {
    constexpr u32 TILE = STEP * D * 2, PANEL = STEP * 128;
    __shared__ float stats[STEP_STAGES][2][STEP]; // lse · log2 e and delta
    int lane = threadIdx.x & 31, wg = warpgroup();
    u32 sk = smem_base(), sv = sk + ROWS * D * 2, sq = sv + ROWS * D * 2, sd = sq + STEP_STAGES * TILE;
    __shared__ Ring<STEP_STAGES> ring;
    ring_init(ring, 2 * LOADERS, WORKERS); // copies and statistics, which every lane reads itself
    __shared__ u64 own; // keys and values
    own_init(&own);
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        LOADER_REGISTERS;
        int id = threadIdx.x - WORKERS, i = id % STEP;
        for (int n = item(0), round = 0, at = 0; n < work; n = item(++round)) {
            int4 tile = tiles[n / kv_heads];
            int kv_head = n % kv_heads, start = tile.x, len = tile.y, row0 = tile.z;
            own_wait(&own, round);
            load_rows<ROWS>(sk, k + (long long)(start + row0) * k_stride + kv_head * D, k_stride, len - row0);
            load_rows<ROWS>(sv, v + (long long)(start + row0) * v_stride + kv_head * D, v_stride, len - row0);
            for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
                for (int first = row0; first < len; first += STEP, at++) {
                    int stage = at % STEP_STAGES, r = first + i;
                    long long row = start + first;
                    wait_empty(ring, at);
                    load_rows<STEP>(sq + stage * TILE, q + row * q_stride + head * D, q_stride, len - first);
                    load_rows<STEP>(sd + stage * TILE, dout + row * dout_stride + head * D, dout_stride, len - first);
                    arrive_copied(ring, at);
                    long long stat = (long long)head * tokens + start + r;
                    if (id < STEP) stats[stage][0][i] = r < len ? lse[stat] * LOG2E : INF;
                    else stats[stage][1][i] = r < len ? delta[stat] : 0.0f;
                    arrive(ring.full + stage);
                }
        }
        copies_done();
        return;
    }
    WORKER_REGISTERS;

    for (int n = item(0), round = 0, base = 0; n < work; n = item(++round)) {
        int4 tile = tiles[n / kv_heads];
        int kv_head = n % kv_heads, start = tile.x, len = tile.y, row0 = tile.z, row = row0 + (threadIdx.x >> 5) * 16 + (lane >> 2);
        int per_head = (len - row0 + STEP - 1) / STEP, count = per_head * group;
        float gk[OUT], gv[OUT], s[32], dp[32];
        u32 w[4][4], x[4][4];
    #pragma unroll
        for (int i = 0; i < OUT; i++) gk[i] = gv[i] = 0.0f;
        float c2 = scale * LOG2E;
        u32 my_k = sk + wg * 64 * 128, my_v = sv + wg * 64 * 128;

        for (int t = 0; t < count; t++) {
            int step = t % per_head, first = row0 + step * STEP;
            wait_full(ring, base + t);
            if (step < wg) { // these queries come before all of this warpgroup's keys
                arrive(ring.empty + (base + t) % STEP_STAGES);
                continue;
            }
            int stage = (base + t) % STEP_STAGES;
            u32 my_q = sq + stage * TILE, my_d = sd + stage * TILE;
            products_begin();
            scores(s, my_k, ROWS * 128, my_q, PANEL); // [keys, queries]
            products_commit();
            scores(dp, my_v, ROWS * 128, my_d, PANEL);
            products_commit();
            products_wait<1>();
            results(s);
    #pragma unroll
            for (int n = 0; n < 8; n++) {
                float2 z = *(const float2*)&stats[stage][0][n * 8 + (lane & 3) * 2];
    #pragma unroll
                for (int i = 0; i < 4; i++) {
                    float e = exp2_fast(fmaf(s[n * 4 + i], c2, -(i & 1 ? z.y : z.x)));
                    bool before = step == wg && first + n * 8 + (lane & 3) * 2 + (i & 1) < row + (i >> 1) * 8;
                    s[n * 4 + i] = before ? 0.0f : e;
                }
            }
            as_operand<4>(w, s);
            products_wait<0>();
            results(dp);
            products_begin();
            weighted<4>(gv, w, my_d, PANEL);
            products_commit();
    #pragma unroll
            for (int n = 0; n < 8; n++) {
                float2 z = *(const float2*)&stats[stage][1][n * 8 + (lane & 3) * 2];
    #pragma unroll
                for (int i = 0; i < 4; i++) s[n * 4 + i] *= dp[n * 4 + i] - (i & 1 ? z.y : z.x);
            }
            as_operand<4>(x, s);
            products_begin();
            weighted<4>(gk, x, my_q, PANEL);
            products_commit();
            products_wait<0>();
            results(gk);
            results(gv);
            arrive(ring.empty + (base + t) % STEP_STAGES);
        }
        own_done(&own);
        store_rows(dk + (long long)start * dk_stride + kv_head * D, dk_stride, gk, row, len, scale, scale);
        store_rows(dv + (long long)start * dv_stride + kv_head * D, dv_stride, gv, row, len, 1.0f, 1.0f);
        base += count;
    }
}

// dq of 128 queries of one head, over all keys that they see.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_backward_q(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v,
                     const bf16* __restrict__ dout, const float* __restrict__ lse, const float* __restrict__ delta,
                     bf16* __restrict__ dq, const int4* __restrict__ tiles, int work, int heads, int group, int tokens,
                     long long q_stride, long long k_stride, long long v_stride, long long dout_stride,
                     long long dq_stride, float scale) {
    constexpr u32 TILE = STEP * D * 2, PANEL = STEP * 128;
    int lane = threadIdx.x & 31, wg = warpgroup();
    u32 sq = smem_base(), sd = sq + ROWS * D * 2, sk = sd + ROWS * D * 2, sv = sk + STEP_STAGES * TILE;
    __shared__ Ring<STEP_STAGES> ring;
    ring_init(ring, LOADERS, WORKERS / 32);
    __shared__ u64 own; // queries and their gradients
    own_init(&own);
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        LOADER_REGISTERS;
        for (int n = item(0), round = 0, at = 0; n < work; n = item(++round)) {
            int4 tile = tiles[n / heads];
            int head = n % heads, kv_head = head / group, start = tile.x, len = tile.y, row0 = tile.z;
            const bf16* from_k = k + (long long)start * k_stride + kv_head * D;
            const bf16* from_v = v + (long long)start * v_stride + kv_head * D;
            own_wait(&own, round);
            load_rows<ROWS>(sq, q + (long long)(start + row0) * q_stride + head * D, q_stride, len - row0);
            load_rows<ROWS>(sd, dout + (long long)(start + row0) * dout_stride + head * D, dout_stride, len - row0);
            for (int first = 0; first < min(len, row0 + ROWS); first += STEP, at++) {
                u32 stage = at % STEP_STAGES * TILE;
                wait_empty(ring, at);
                load_rows<STEP>(sk + stage, from_k + (long long)first * k_stride, k_stride, len - first);
                load_rows<STEP>(sv + stage, from_v + (long long)first * v_stride, v_stride, len - first);
                arrive_copied(ring, at);
            }
        }
        copies_done();
        return;
    }
    WORKER_REGISTERS;

    for (int n = item(0), round = 0, base = 0; n < work; n = item(++round)) {
        int4 tile = tiles[n / heads];
        int head = n % heads, start = tile.x, len = tile.y, row0 = tile.z, row = row0 + (threadIdx.x >> 5) * 16 + (lane >> 2);
        int count = (min(len, row0 + ROWS) + STEP - 1) / STEP;
        float z[2], dl[2];
    #pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = row + h * 8;
            z[h] = r < len ? lse[(long long)head * tokens + start + r] * LOG2E : INF;
            dl[h] = r < len ? delta[(long long)head * tokens + start + r] : 0.0f;
        }
        float g[OUT], s[32], dp[32];
        u32 w[4][4];
    #pragma unroll
        for (int i = 0; i < OUT; i++) g[i] = 0.0f;
        float c2 = scale * LOG2E;
        int first_row = row0 + wg * 64;
        u32 my_q = sq + wg * 64 * 128, my_d = sd + wg * 64 * 128;

        for (int t = 0; t < count; t++) {
            int first = t * STEP;
            wait_full(ring, base + t);
            if (first > first_row) { // no row of this warpgroup sees these keys
                give_back(ring, base + t);
                continue;
            }
            u32 stage = (base + t) % STEP_STAGES * TILE;
            products_begin();
            scores(s, my_q, ROWS * 128, sk + stage, PANEL);
            products_commit();
            scores(dp, my_d, ROWS * 128, sv + stage, PANEL);
            products_commit();
            products_wait<1>();
            results(s);
    #pragma unroll
            for (int n = 0; n < 8; n++)
    #pragma unroll
                for (int i = 0; i < 4; i++) {
                    float e = exp2_fast(fmaf(s[n * 4 + i], c2, -z[i >> 1]));
                    bool after = first == first_row && first + n * 8 + (lane & 3) * 2 + (i & 1) > row + (i >> 1) * 8;
                    s[n * 4 + i] = after ? 0.0f : e;
                }
            products_wait<0>();
            results(dp);
    #pragma unroll
            for (int i = 0; i < 32; i++) s[i] *= dp[i] - dl[(i >> 1) & 1];
            as_operand<4>(w, s);
            products_begin();
            weighted<4>(g, w, sk + stage, PANEL);
            products_commit();
            products_wait<0>();
            results(g);
            give_back(ring, base + t);
        }
        own_done(&own);
        store_rows(dq + (long long)start * dq_stride + head * D, dq_stride, g, row, len, scale, scale);
        base += count;
    }
}
