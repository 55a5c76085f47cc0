// The run of CP-ALS that a block of threads serves: the only one, or one of several side by side.
//
//   SEVERAL  1: a launch serves several runs. Each has up to RANK columns of its own of the factor matrices; its small
//            matrices have room for RANK, and what lies beyond its own columns is 0
//
// One of several that has raised a flag is left alone until the host has looked at it: a launch serves those whose flags are
// the `wanted` ones.

#pragma once

#include "state.cuh"

#ifndef SEVERAL
#define SEVERAL 0
#endif

struct Runs {
  const int2* places;   // for each run its first column, and how many it has: 0 if there is no run
  const double* facts;  // for each run FACTS, `apart` numbers from those of the one before
  long long apart;
};
struct Run {
  int number, first, rank;  // which one; its columns: 0 if the launch does not serve it
};

__device__ __forceinline__ Run run_of(const Runs& runs, int number, int wanted) {
#if SEVERAL
  const int2 place = runs.places[number];
  return {number, place.x, (int)runs.facts[number * runs.apart + FLAGS] == wanted ? place.y : 0};
#else
  return {0, 0, RANK};
#endif
}
