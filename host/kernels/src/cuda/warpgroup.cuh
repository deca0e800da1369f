// Hopper's warpgroup products (wgmma, bf16 in, f32 sums), its copies of boxes of memory, and the barriers between those
// who copy and those who compute. Shared by the kernels of attention on sm_90a; knows nothing of attention.
//
// D is 64 or 128. Tiles lie in shared memory as panels of 64 columns, rows of 128 bytes, 16-byte units exchanged by
// their row (the 128-byte swizzle that copies write and products read).

#define WORKERS 256 // threads that compute
#define LOADERS 128 // threads that copy, after them
#define THREADS (LOADERS + WORKERS)
#define ROWS 128 // of a block's own tile
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
// Makes barriers known to the copies of boxes; before the block's first barrier.
__device__ __forceinline__ void rings_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Makes ordinary accesses to shared memory come before later ones by products and copies of boxes.
__device__ __forceinline__ void shared_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// A worker waits for step t of a ring.
template <int N> __device__ __forceinline__ void wait_full(Ring<N>& r, int t) { wait(r.full + t % N, (t / N) & 1); }
// The same where loaders' threads copied; what they copied is then visible to the products too.
template <int N> __device__ __forceinline__ void wait_copied(Ring<N>& r, int t) {
    wait_full(r, t);
    shared_ready();
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

// A loader's part of N rows of D elements as panels; rows from `valid` on become zero.
template <int N> __device__ __forceinline__ void load_rows(u32 to, const bf16* from, long long stride, int valid) {
    int id = threadIdx.x - WORKERS, unit = id % (D / 8), first = id / (D / 8);
    from += unit * 8;
#pragma unroll 8
    for (int row = first; row < N; row += LOADERS / (D / 8)) {
        bool ok = row < valid;
        copy16(to + (unit / 8) * N * 128 + row * 128 + (((unit & 7) ^ (row & 7)) << 4), from + (ok ? row : 0) * stride, ok);
    }
}

// A tensor map of the driver's: boxes of 64 columns and so many rows of a matrix of bf16.
struct __align__(64) Map { u64 words[16]; };
// One thread copies N rows of D elements to panels; `full` is reached when all are there. Rows behind the matrix's last are zero.
template <int N> __device__ __forceinline__ void copy_rows(u32 to, const Map* from, int column, int row, const u64* full) {
#pragma unroll
    for (int panel = 0; panel < D / 64; panel++)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     ::"r"(to + panel * N * 128), "l"(from), "r"(column + panel * 64), "r"(row), "r"(address(full)) : "memory");
}
// One thread arrives at a barrier that is reached once so many bytes were copied, too.
__device__ __forceinline__ void arrive_expecting(const u64* full, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address(full)), "r"(bytes) : "memory");
}

// Barriers of some warps by number; `threads` counts those who wait and those who only arrive.
__device__ __forceinline__ void meet(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void pass(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#define COPIER_REGISTERS asm volatile("setmaxnreg.dec.sync.aligned.u32 24;")
#define OWNER_REGISTERS asm volatile("setmaxnreg.inc.sync.aligned.u32 240;")
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
// The same, a and b from shared memory and both read across rows, for D / 2 columns of b.
#if D == 128
__device__ __forceinline__ void wgmma_first_across(float (&d)[32], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, %32, %33, p, 1, 1, 1, 1; }"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
                   "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
                   "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
                   "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
                 : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_across(float (&d)[32], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, %32, %33, p, 1, 1, 1, 1; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b));
}
#else
__device__ __forceinline__ void wgmma_first_across(float (&d)[16], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                 "}, %16, %17, p, 1, 1, 1, 1; }"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
                   "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15])
                 : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_across(float (&d)[16], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                 "}, %16, %17, p, 1, 1, 1, 1; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "l"(a), "l"(b));
}
#endif
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
// c[64 × D/2] = (128 rows of 64 at `a`)ᵀ · D/2 columns of 128 rows at `b`.
__device__ __forceinline__ void across(float (&c)[D / 4], u32 a, u32 b) {
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) {
        u64 x = operand(a, 16, k * 16 * 128), y = operand(b, 16, k * 16 * 128);
        if (k == 0) wgmma_first_across(c, x, y);
        else wgmma_across(c, x, y);
    }
}
// Results as the left operand of the next product.
template <int STEPS> __device__ __forceinline__ void as_operand(u32 (*w)[4], const float* c) {
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) w[k][i] = pack_bf16(c[k * 8 + i * 2], c[k * 8 + i * 2 + 1]);
}
// Writes 16 rows of 16 values that a warp holds as a left operand to swizzled rows; `to` is the panel's row of the lane
// that put_row() names, `unit` the 16-byte unit of the first values.
__device__ __forceinline__ int put_row() { return ((threadIdx.x >> 5 & 3) * 16) + (threadIdx.x & 15); }
__device__ __forceinline__ void put16(u32 to, int unit, const u32* w) {
    u32 at = to + ((unit + (threadIdx.x >> 4 & 1) ^ (threadIdx.x & 7)) << 4);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}
// A warpgroup writes its 64 rows times a factor per half by way of 64 · D · 2 bytes of its own at `room`, panels `panel` bytes
// apart, so that whole rows go to memory at once; rows from `valid` on are left alone. `barrier` is the warpgroup's.
__device__ __forceinline__ void write_rows(bf16* to, long long stride, const float* c, int first_row, int valid, float low, float high,
                                           u32 room, u32 panel, int barrier) {
    u32 at = room + put_row() * 128;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        u32 w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float factor = i & 1 ? high : low;
            w[i] = pack_bf16(c[k * 8 + i * 2] * factor, c[k * 8 + i * 2 + 1] * factor);
        }
        put16(at + (k / 4) * panel, (k % 4) * 2, w);
    }
    meet(barrier, 128);
    int unit = threadIdx.x % (D / 8), row = (threadIdx.x & 127) / (D / 8);
    bf16* p = to + (long long)(first_row + row) * stride + unit * 8;
    at = room + (unit / 8) * panel;
#pragma unroll
    for (int i = 0; i < D / 16; i++, row += 1024 / D) {
        uint4 x;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at + row * 128 + ((unit & 7 ^ row & 7) << 4)) : "memory");
        if (first_row + row < valid) *(uint4*)(p + (long long)i * (1024 / D) * stride) = x;
    }
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
