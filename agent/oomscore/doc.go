// Package oomscore looks after what the kernel's OOM killer is told of
// containers, for the case that it gets to act before evictd: it takes the process
// with the most memory, to which the oom_score_adj of each adds a thousandth of all
// memory per point (mm/oom_kill.c: oom_badness). A score knows requests, by the
// kubelet's formula, but no priorities.
//
// Scores are those of processes, not of containers: a process inherits its
// parent's, may raise it, and may lower it as far as it was before.
package oomscore
