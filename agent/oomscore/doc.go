// Package oomscore enforces the oom_score_adj of containers, for the case that the
// kernel's OOM killer acts before evictd. The OOM killer chooses the process that uses
// the most memory, where each point of oom_score_adj counts as a thousandth of all
// memory (mm/oom_kill.c: oom_badness). The kubelet's formula for the score considers
// requests, but not priorities.
//
// A score belongs to a process, not to a container. A process inherits the score of its
// parent, may raise it, and may lower it to the value that it had before.
package oomscore
