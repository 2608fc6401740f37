package disks

import (
	"cmp"
	"context"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/disk"
)

const (
	// A survey names surveyLargest directories, at most surveyDepth below the
	// filesystem's root: deep enough for /var/lib/docker. It ends after longestSurvey,
	// and its answer counts for surveyAgain.
	surveyLargest = 5
	surveyDepth   = 3
	longestSurvey = 5 * time.Minute
	surveyAgain   = 10 * time.Minute
)

// A directory in which a survey hangs is left out until hangRetry later, doubling to
// longestHangRetry, and the survey begins again without it. Each attempt that does not
// return keeps a thread, of at most maxOpenPerPod for a filesystem.
const hangRetry, longestHangRetry = surveyAgain, 2 * time.Hour

// survey is a look for the largest directories of a filesystem outside the pods.
type survey struct {
	point   string    // where the filesystem is mounted, as this process sees it
	running *job      // nil for none, and where it hangs
	ended   time.Time // zero while there is no answer
	bytes   []evict.DirectoryUsage
	inodes  []evict.DirectoryUsage
	hung    []hungDirectory
}

// hungDirectory is a directory in which a survey hangs.
type hungDirectory struct {
	path  string // below the filesystem's root; "" is the root
	job   *job   // that hangs there since the last attempt
	until time.Time
	delay time.Duration
}

// Largest returns the largest directories outside the pods of the filesystem mounted
// at point, by bytes or by inodes, as the host sees them. It does not wait: where they
// are not known, or no longer, a survey begins in the background, and the answer of the
// one before, if any, is returned.
func (u *Usages) Largest(point string, inodes bool) []evict.DirectoryUsage {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.surveys[point]
	if s == nil {
		s = &survey{point: point}
		u.surveys[point] = s
	}
	if s.due(time.Now()) && !u.jobs.refuses(point) {
		u.askSurvey(s)
	}
	if inodes {
		return s.inodes
	}
	return s.bytes
}

// due reports whether a survey is to begin: there is no answer, or an old one, and the
// filesystem's root does not hang.
func (s *survey) due(now time.Time) bool {
	return s.running == nil && (s.ended.IsZero() || now.Sub(s.ended) >= surveyAgain) && !slices.Contains(s.skipped(now), "")
}

// skipped lists the directories that are not entered now, because a survey hangs there.
func (s *survey) skipped(now time.Time) (paths []string) {
	for _, h := range s.hung {
		if now.Before(h.until) {
			paths = append(paths, h.path)
		}
	}
	return paths
}

// hangs notes that a survey hangs in a directory.
func (s *survey) hangs(path string, j *job, now time.Time) {
	i := slices.IndexFunc(s.hung, func(h hungDirectory) bool { return h.path == path })
	if i < 0 {
		s.hung = append(s.hung, hungDirectory{path: path, delay: hangRetry / 2})
		i = len(s.hung) - 1
	}
	h := &s.hung[i]
	h.job, h.delay = j, min(2*h.delay, longestHangRetry)
	h.until = now.Add(h.delay)
	s.running = nil
}

// askSurvey has a survey begin. The caller holds mu.
func (u *Usages) askSurvey(s *survey) {
	if !slices.Contains(u.toSurvey, s) {
		u.toSurvey = append(u.toSurvey, s)
		tell(u.wake)
	}
}

// beginSurveys begins those that were asked for, one at a time, each on a thread of its
// own: the pods go on being measured meanwhile. All draw on the same budget.
func (u *Usages) beginSurveys(ctx context.Context) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.toSurvey) == 0 || u.surveying != nil {
		return
	}
	s := u.toSurvey[0]
	u.toSurvey = u.toSurvey[1:]
	j := newJob(s.point, s.point)
	u.surveying, s.running = j, j
	pods := make(map[string]disk.Usage, len(u.places))
	for _, p := range u.places {
		if p.want && p.only == "" {
			pods[p.path] = p.got.Usage
		}
	}
	w := &disk.Walker{Depth: surveyDepth, Skip: s.skipped(j.began)}
	t := u.startThread()
	t.jobs <- func() { u.survey(ctx, s, j, w, pods) }
	close(t.jobs)
	go u.followSurvey(s, j, w)
}

// followSurvey waits for a survey. One that hangs is left behind: others begin, and it
// begins again without the directory in which it hangs.
func (u *Usages) followSurvey(s *survey, j *job, w *disk.Walker) {
	if u.waitFor(j, w.Seen, hangAfter, math.MaxInt64) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if j.ended {
		return
	}
	at := w.At()
	u.jobs.leave(j)
	u.jobs.hang(j)
	s.hangs(at, j, time.Now())
	u.surveying = nil
	u.o.Log.Error("looking for the largest directories hangs in a directory; it is left out for now",
		"filesystem", u.seenByHost(s.point), "path", u.seenByHost(filepath.Join(s.point, at)), "hung", u.jobs.hung)
	if at != "" && !u.jobs.refuses(s.point) {
		u.askSurvey(s)
	}
	tell(u.wake)
}

func surveyWalk(ctx context.Context, w *disk.Walker, path string) (disk.Usage, error) {
	return w.Usage(ctx, path)
}

// survey walks a filesystem. pods are the directories of pods and what they take up.
func (u *Usages) survey(ctx context.Context, s *survey, j *job, w *disk.Walker, pods map[string]disk.Usage) {
	ctx, cancel := context.WithTimeout(ctx, longestSurvey)
	defer cancel()
	defer close(j.done)
	m := meter{cpu: u.cpu}
	m.used()
	bytes, inodes := largest{by: bytesOf}, largest{by: inodesOf}
	w.Pause = func() { u.rest(ctx, j, u.budget.Spend(m.used(), time.Now())) }
	w.Each = func(path string, depth int, got disk.Usage) {
		dir := strings.TrimSuffix(s.point, "/") + "/" + path
		if path == "" {
			dir = s.point
		}
		if got = outsidePods(dir, depth == surveyDepth, got, pods); got != (disk.Usage{}) {
			named := evict.DirectoryUsage{Path: u.seenByHost(dir), Bytes: signed(got.Bytes), Inodes: signed(got.Inodes)}
			bytes.add(named)
			inodes.add(named)
		}
	}
	_, err := u.surveyWalk(ctx, w, s.point)
	u.budget.Spend(m.used(), time.Now())
	if !u.takeSurvey(s, j, bytes.all, inodes.all) {
		return
	}
	attributes := []any{"filesystem", u.seenByHost(s.point), "by_bytes", bytes.all, "by_inodes", inodes.all}
	if err != nil {
		attributes = append(attributes, "incomplete", err)
	}
	u.o.Log.Warn("largest directories outside the pods", attributes...)
	if u.o.Surveyed != nil {
		u.o.Surveyed(s.point, bytes.all, inodes.all)
	}
	tell(u.wake)
}

// takeSurvey notes the answer of a survey. It is false for one that hung: what it counted
// before that is old.
func (u *Usages) takeSurvey(s *survey, j *job, bytes, inodes []evict.DirectoryUsage) bool {
	u.ended(j)
	u.mu.Lock()
	defer u.mu.Unlock()
	s.hung = slices.DeleteFunc(s.hung, func(h hungDirectory) bool { return h.job == j })
	if s.running != j {
		return false
	}
	s.running, s.ended, s.bytes, s.inodes = nil, time.Now(), bytes, inodes
	u.surveying = nil
	return true
}

// outsidePods returns what of a directory's usage is not that of pods. whole tells that
// the usage covers all below the directory.
func outsidePods(dir string, whole bool, u disk.Usage, pods map[string]disk.Usage) disk.Usage {
	for path, of := range pods {
		switch {
		case dir == path || strings.HasPrefix(dir, path+"/"):
			return disk.Usage{}
		case whole && strings.HasPrefix(path, dir+"/"):
			u.Bytes -= min(u.Bytes, of.Bytes)
			u.Inodes -= min(u.Inodes, of.Inodes)
		}
	}
	return u
}

// seenByHost returns a path of this process as the host sees it.
func (u *Usages) seenByHost(path string) string {
	rest := strings.TrimPrefix(path, strings.TrimSuffix(u.o.Rootfs, "/"))
	return cmp.Or(rest, "/")
}

// largest keeps the largest directories of those it is given.
type largest struct {
	by  func(evict.DirectoryUsage) int64
	all []evict.DirectoryUsage
}

func bytesOf(d evict.DirectoryUsage) int64  { return d.Bytes }
func inodesOf(d evict.DirectoryUsage) int64 { return d.Inodes }

func (l *largest) add(d evict.DirectoryUsage) {
	i, _ := slices.BinarySearchFunc(l.all, d, func(a, b evict.DirectoryUsage) int {
		return cmp.Or(cmp.Compare(l.by(b), l.by(a)), cmp.Compare(a.Path, b.Path))
	})
	l.all = slices.Insert(l.all, i, d)
	l.all = l.all[:min(len(l.all), surveyLargest)]
}
