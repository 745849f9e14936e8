#pragma once

// For headers whose source runs on the host and in kernels alike.

#if defined(__CUDACC__)
#define REFIT_HOST_DEVICE __host__ __device__
#define REFIT_DEVICE __device__  // in kernels; on the host where there is no kernel
#define REFIT_UNROLL _Pragma("unroll")
#else
#define REFIT_HOST_DEVICE
#define REFIT_DEVICE
#define REFIT_UNROLL
#endif
