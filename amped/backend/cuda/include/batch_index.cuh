// The CP-ALS run that a thread block serves: the only one, or one of a batch.
//
//   SEVERAL  1: a launch serves a batch of runs. Each has its own columns of the factor matrices, up to RANK; its small
//            matrices have room for RANK columns, and are 0 beyond its own
//
// A run of a batch that has raised a flag is skipped until the host has examined it: a launch serves the runs whose
// flags equal `wanted`.

#pragma once

#include "state.cuh"

#ifndef SEVERAL
#define SEVERAL 0
#endif

struct Runs {
  const int2* places;  // first column and number of columns of each run; 0 columns: no run
  const double* facts;  // FACTS numbers per run, `apart` numbers from run to run
  long long apart;
};
struct Run {
  int number, first, rank;  // number; first column; columns: 0 if the launch does not serve the run
};

__device__ __forceinline__ Run run_of(const Runs& runs, int number, int wanted) {
#if SEVERAL
  const int2 place = runs.places[number];
  return {number, place.x, (int)runs.facts[number * runs.apart + FLAGS] == wanted ? place.y : 0};
#else
  return {0, 0, RANK};
#endif
}
