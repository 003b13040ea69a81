// What the templates use of HIP's words. hipRTC puts a header of 570 kB before every source, and to read that takes
// longer than to compile a kernel; it asks its compiler for `hiprtc_runtime.h` by name, and the compiler looks into its
// current folder first, where the worker has put this one.
//
// Each word means what it means there, for all that it takes here, and gives the same instructions. A kernel that wants
// another word, or more of one of these, does not compile, and is compiled once more with hipRTC's own header. A
// compiler that does not look here finds that one, and all is as without this.

#define __HIP_PLATFORM_AMD__ 1
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define HIP_WORD static __attribute__((device, always_inline)) inline
// A lane that takes no part has no value to give.
#define HIP_MAYBE __attribute__((maybe_undef))

typedef __SIZE_TYPE__ size_t;

// ---- who a thread is ----
extern "C" {
__attribute__((device, const)) size_t __ockl_get_local_id(unsigned);
__attribute__((device, const)) size_t __ockl_get_group_id(unsigned);
__attribute__((device, const)) size_t __ockl_get_num_groups(unsigned);
}
struct hip_thread {
  __declspec(property(get = get_x)) unsigned x;
  HIP_WORD unsigned get_x() { return __ockl_get_local_id(0); }
};
#define HIP_THREE(name, number) \
  struct name { \
    __declspec(property(get = get_x)) unsigned x; \
    __declspec(property(get = get_y)) unsigned y; \
    __declspec(property(get = get_z)) unsigned z; \
    HIP_WORD unsigned get_x() { return number(0); } \
    HIP_WORD unsigned get_y() { return number(1); } \
    HIP_WORD unsigned get_z() { return number(2); } \
  };
HIP_THREE(hip_block, __ockl_get_group_id)
HIP_THREE(hip_grid, __ockl_get_num_groups)
extern const __attribute__((device, weak)) hip_thread threadIdx;
extern const __attribute__((device, weak)) hip_block blockIdx;
extern const __attribute__((device, weak)) hip_grid gridDim;

// ---- barriers and fences ----
HIP_WORD __attribute__((convergent)) void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
HIP_WORD void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
HIP_WORD void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }

// ---- what a wave does together ----
HIP_WORD unsigned hip_lane() {
  const unsigned lane = __builtin_amdgcn_mbcnt_lo(~0u, 0);
  return __builtin_amdgcn_wavefrontsize() == 32 ? lane : __builtin_amdgcn_mbcnt_hi(~0u, lane);
}
// Words of 4 bytes, one after the other.
template <class T> HIP_WORD T hip_of_lane(T value, int lane) {
  static_assert(sizeof(T) % 4 == 0, "whole words");
  int words[sizeof(T) / 4];
  __builtin_memcpy(words, &value, sizeof(T));
  for (int& word : words) word = __builtin_amdgcn_ds_bpermute(lane << 2, word);
  __builtin_memcpy(&value, words, sizeof(T));
  return value;
}
template <class T> HIP_WORD T __shfl(HIP_MAYBE T value, int source, int width)
    { return hip_of_lane(value, (source & (width - 1)) + ((int)hip_lane() & ~(width - 1))); }
template <class T> HIP_WORD T __shfl_xor(HIP_MAYBE T value, int mask, int width) {
  const int self = hip_lane(), lane = self ^ mask;
  return hip_of_lane(value, lane >= ((self + width) & ~(width - 1)) ? self : lane);
}
template <class T> HIP_WORD T __shfl_up(HIP_MAYBE T value, unsigned by, int width) {
  const int self = hip_lane(), lane = self - by;
  return hip_of_lane(value, lane < (self & ~(width - 1)) ? self : lane);
}
template <class T> HIP_WORD T __shfl_down(HIP_MAYBE T value, unsigned by, int width) {
  const int self = hip_lane(), lane = self + by;
  return hip_of_lane(value, (int)((self & (width - 1)) + by) >= width ? self : lane);
}
extern "C" __attribute__((device, convergent)) int __ockl_wfany_i32(int);
extern "C" __attribute__((device, convergent)) int __ockl_wfall_i32(int);
HIP_WORD int __any(int vote) { return __ockl_wfany_i32(vote); }
HIP_WORD int __all(int vote) { return __ockl_wfall_i32(vote); }
HIP_WORD unsigned long long __ballot(int vote) { return __builtin_amdgcn_ballot_w64(vote); }

// ---- atomics ----
#define HIP_ATOMICS(type) \
  HIP_WORD type atomicAdd(type* where, type by) \
      { return __hip_atomic_fetch_add(where, by, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); } \
  HIP_WORD type atomicExch(type* where, type by) \
      { return __hip_atomic_exchange(where, by, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
HIP_ATOMICS(int)
HIP_ATOMICS(unsigned)
HIP_ATOMICS(unsigned long long)
HIP_WORD int atomicOr(int* where, int by)
    { return __hip_atomic_fetch_or(where, by, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
HIP_WORD unsigned atomicOr(unsigned* where, unsigned by)
    { return __hip_atomic_fetch_or(where, by, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }

// ---- numbers ----
extern "C" {
__attribute__((device, pure)) float __ocml_pow_f32(float, float);
__attribute__((device)) float __ocml_sin_f32(float);
__attribute__((device)) float __ocml_cos_f32(float);
__attribute__((device, pure)) double __ocml_exp_f64(double);
__attribute__((device, pure)) double __ocml_log_f64(double);
__attribute__((device, const)) float __ocml_rsqrt_f32(float);
}
HIP_WORD float expf(float x) { return __builtin_expf(x); }
HIP_WORD float exp2f(float x) { return __builtin_exp2f(x); }
HIP_WORD float logf(float x) { return __builtin_logf(x); }
HIP_WORD float log2f(float x) { return __builtin_log2f(x); }
HIP_WORD float sqrtf(float x) { return __builtin_sqrtf(x); }
HIP_WORD float rsqrtf(float x) { return __ocml_rsqrt_f32(x); }
HIP_WORD float fabsf(float x) { return __builtin_fabsf(x); }
HIP_WORD float floorf(float x) { return __builtin_floorf(x); }
HIP_WORD float ceilf(float x) { return __builtin_ceilf(x); }
HIP_WORD float rintf(float x) { return __builtin_rintf(x); }
HIP_WORD float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
HIP_WORD float fminf(float x, float y) { return __builtin_fminf(x, y); }
HIP_WORD float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
HIP_WORD float sinf(float x) { return __ocml_sin_f32(x); }
HIP_WORD float cosf(float x) { return __ocml_cos_f32(x); }
HIP_WORD float powf(float x, float y) { return __ocml_pow_f32(x, y); }
HIP_WORD unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
HIP_WORD float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
HIP_WORD int __popc(unsigned x) { return __builtin_popcount(x); }
HIP_WORD int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
HIP_WORD int __ffs(unsigned x) { return (x == 0 ? -1 : __builtin_ctz(x)) + 1; }
HIP_WORD int __ffsll(unsigned long long x) { return (x == 0 ? -1 : __builtin_ctzll(x)) + 1; }
HIP_WORD float __expf(float x) { return __builtin_amdgcn_exp2f(0x1.715476p+0f * x); }
HIP_WORD float __logf(float x) { return __builtin_logf(x); }
HIP_WORD float exp(float x) { return expf(x); }
HIP_WORD float log(float x) { return logf(x); }
HIP_WORD float sqrt(float x) { return sqrtf(x); }
HIP_WORD float fma(float x, float y, float z) { return fmaf(x, y, z); }
HIP_WORD double exp(double x) { return __ocml_exp_f64(x); }
HIP_WORD double log(double x) { return __ocml_log_f64(x); }
HIP_WORD double sqrt(double x) { return __builtin_sqrt(x); }
HIP_WORD double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
