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
	// A survey lists the surveyEntries largest directories, at most surveyDepth
	// levels below the filesystem's root: deep enough for /var/lib/docker. It ends
	// after surveyTimeout, which bounds its use of the budget. Its result is valid
	// for surveyValidity: what fills a disk outside the pods, such as a log, rarely
	// changes faster.
	surveyEntries  = 5
	surveyDepth    = 3
	surveyTimeout  = 5 * time.Minute
	surveyValidity = 10 * time.Minute
)

// A directory in which a survey hangs is skipped for surveyValidity, doubling to
// maxHangBackoff, and the survey starts again without it. Each attempt that does
// not return costs a thread, of at most maxDetachedPerPod for a filesystem.
const maxHangBackoff = 2 * time.Hour

// survey is a search for the largest directories of a filesystem outside the pods.
type survey struct {
	point   string    // mount point, as this process sees it
	running *job      // nil if none runs, or if it hangs
	ended   time.Time // zero while there is no result
	bytes   []evict.DirectoryUsage
	inodes  []evict.DirectoryUsage
	hung    []hungDirectory
}

// hungDirectory is a directory in which a survey hangs.
type hungDirectory struct {
	path  string // relative to the filesystem's root; "" is the root
	job   *job   // the last attempt, which hangs there
	until time.Time
	delay time.Duration
}

// LargestDirectories returns the largest directories outside the pods of the filesystem
// mounted at point, by bytes or by inodes, as the host sees them. It does not wait:
// if the result is missing or old, it starts a survey in the background and returns
// the previous result, if any.
func (u *UsageMeter) LargestDirectories(point string, inodes bool) []evict.DirectoryUsage {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.surveys[point]
	if s == nil {
		s = &survey{point: point}
		u.surveys[point] = s
	}
	if s.due(time.Now()) && !u.jobs.exhausted(point) {
		u.queueSurvey(s)
	}
	if inodes {
		return s.inodes
	}
	return s.bytes
}

// due reports whether a survey should start: the result is missing or old, and the
// filesystem's root does not hang.
func (s *survey) due(now time.Time) bool {
	return s.running == nil && (s.ended.IsZero() || now.Sub(s.ended) >= surveyValidity) && !slices.Contains(s.skipped(now), "")
}

// skipped lists the directories that are not entered now, because a survey hung
// there.
func (s *survey) skipped(now time.Time) (paths []string) {
	for _, h := range s.hung {
		if now.Before(h.until) {
			paths = append(paths, h.path)
		}
	}
	return paths
}

// recordHang records that a survey hangs in a directory.
func (s *survey) recordHang(path string, j *job, now time.Time) {
	i := slices.IndexFunc(s.hung, func(h hungDirectory) bool { return h.path == path })
	if i < 0 {
		s.hung = append(s.hung, hungDirectory{path: path, delay: surveyValidity / 2})
		i = len(s.hung) - 1
	}
	h := &s.hung[i]
	h.job, h.delay = j, min(2*h.delay, maxHangBackoff)
	h.until = now.Add(h.delay)
	s.running = nil
}

// queueSurvey queues a survey. mu must be locked.
func (u *UsageMeter) queueSurvey(s *survey) {
	if !slices.Contains(u.surveyQueue, s) {
		u.surveyQueue = append(u.surveyQueue, s)
		notify(u.wake)
	}
}

// startSurvey starts the next queued survey, one at a time, on a thread of its own,
// so that pods are measured in parallel. All draw on the same budget.
func (u *UsageMeter) startSurvey(ctx context.Context) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.surveyQueue) == 0 || u.activeSurvey != nil {
		return
	}
	s := u.surveyQueue[0]
	u.surveyQueue = u.surveyQueue[1:]
	j := newJob(s.point, s.point)
	u.activeSurvey, s.running = j, j
	pods := make(map[string]disk.Usage, len(u.targets))
	for _, t := range u.targets {
		if t.want && t.only == "" {
			pods[t.path] = t.got.Usage
		}
	}
	w := &disk.Walker{Depth: surveyDepth, Skip: s.skipped(j.began)}
	thread := u.newWorker()
	thread.jobs <- func() { u.survey(ctx, s, j, w, pods) }
	close(thread.jobs)
	go u.watchSurvey(s, j, w)
}

// watchSurvey waits for a survey. A survey that hangs is detached: the next one
// starts, and it starts again without the directory in which it hangs.
func (u *UsageMeter) watchSurvey(s *survey, j *job, w *disk.Walker) {
	if u.waitFor(j, w.Entries, hangTimeout, math.MaxInt64) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if j.ended {
		return
	}
	at := w.CurrentDirectory()
	u.jobs.detach(j)
	u.jobs.hang(j)
	s.recordHang(at, j, time.Now())
	u.activeSurvey = nil
	u.o.Log.Error("search for the largest directories hangs in a directory; the directory is skipped for now",
		"filesystem", u.hostPath(s.point), "path", u.hostPath(filepath.Join(s.point, at)), "hung", u.jobs.hung)
	if at != "" && !u.jobs.exhausted(s.point) {
		u.queueSurvey(s)
	}
	notify(u.wake)
}

func surveyWalk(ctx context.Context, w *disk.Walker, path string) (disk.Usage, error) {
	return w.Usage(ctx, path)
}

// survey walks a filesystem. pods are the directories of pods and their usage.
func (u *UsageMeter) survey(ctx context.Context, s *survey, j *job, w *disk.Walker, pods map[string]disk.Usage) {
	ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
	defer cancel()
	defer close(j.done)
	m := cpuMeter{cpu: u.cpu}
	m.used()
	bytes, inodes := topDirectories{by: bytesOf}, topDirectories{by: inodesOf}
	w.Pause = func() { u.throttle(ctx, j, u.budget.Spend(m.used(), time.Now())) }
	w.OnDirectory = func(path string, depth int, got disk.Usage) {
		dir := strings.TrimSuffix(s.point, "/") + "/" + path
		if path == "" {
			dir = s.point
		}
		if got = outsidePods(dir, depth == surveyDepth, got, pods); got != (disk.Usage{}) {
			named := evict.DirectoryUsage{Path: u.hostPath(dir), Bytes: signed(got.Bytes), Inodes: signed(got.Inodes)}
			bytes.insert(named)
			inodes.insert(named)
		}
	}
	_, err := u.surveyWalk(ctx, w, s.point)
	u.budget.Spend(m.used(), time.Now())
	if !u.finishSurvey(s, j, bytes.all, inodes.all) {
		return
	}
	attributes := []any{"filesystem", u.hostPath(s.point), "by_bytes", bytes.all, "by_inodes", inodes.all}
	if err != nil {
		attributes = append(attributes, "incomplete", err)
	}
	u.o.Log.Warn("largest directories outside the pods", attributes...)
	if u.o.OnSurvey != nil {
		u.o.OnSurvey(s.point, bytes.all, inodes.all)
	}
	notify(u.wake)
}

// finishSurvey stores the result of a survey. It returns false for a survey that
// hung: its counts are old.
func (u *UsageMeter) finishSurvey(s *survey, j *job, bytes, inodes []evict.DirectoryUsage) bool {
	u.jobEnded(j)
	u.mu.Lock()
	defer u.mu.Unlock()
	s.hung = slices.DeleteFunc(s.hung, func(h hungDirectory) bool { return h.job == j })
	if s.running != j {
		return false
	}
	s.running, s.ended, s.bytes, s.inodes = nil, time.Now(), bytes, inodes
	u.activeSurvey = nil
	return true
}

// outsidePods returns the part of a directory's usage that is not the usage of
// pods. whole reports that the usage covers the whole subtree.
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

// hostPath returns a path of this process as the host sees it.
func (u *UsageMeter) hostPath(path string) string {
	rest := strings.TrimPrefix(path, strings.TrimSuffix(u.o.Rootfs, "/"))
	return cmp.Or(rest, "/")
}

// topDirectories collects the surveyEntries largest of the inserted directories.
type topDirectories struct {
	by  func(evict.DirectoryUsage) int64
	all []evict.DirectoryUsage
}

func bytesOf(d evict.DirectoryUsage) int64  { return d.Bytes }
func inodesOf(d evict.DirectoryUsage) int64 { return d.Inodes }

func (t *topDirectories) insert(d evict.DirectoryUsage) {
	i, _ := slices.BinarySearchFunc(t.all, d, func(a, b evict.DirectoryUsage) int {
		return cmp.Or(cmp.Compare(t.by(b), t.by(a)), cmp.Compare(a.Path, b.Path))
	})
	t.all = slices.Insert(t.all, i, d)
	t.all = t.all[:min(len(t.all), surveyEntries)]
}
