package disks

import (
	"cmp"
	"context"
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

// survey is a look for the largest directories of a filesystem outside the pods.
type survey struct {
	point   string // where the filesystem is mounted, as this process sees it
	running bool
	ended   time.Time // zero while there is no answer
	bytes   []evict.DirectoryUsage
	inodes  []evict.DirectoryUsage
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
	if !s.running && (s.ended.IsZero() || time.Since(s.ended) >= surveyAgain) && !slices.Contains(u.toSurvey, s) {
		u.toSurvey = append(u.toSurvey, s)
		tell(u.wake)
	}
	if inodes {
		return s.inodes
	}
	return s.bytes
}

// beginSurveys begins those that were asked for, one at a time, each on a thread of its
// own: the pods go on being measured meanwhile. All draw on the same budget.
func (u *Usages) beginSurveys(ctx context.Context) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.toSurvey) == 0 || u.surveying {
		return
	}
	s := u.toSurvey[0]
	u.toSurvey = u.toSurvey[1:]
	u.surveying, s.running = true, true
	pods := make(map[string]disk.Usage, len(u.places))
	for _, p := range u.places {
		if p.want && p.only == "" {
			pods[p.path] = p.got.Usage
		}
	}
	t := u.startThread()
	t.jobs <- func() { u.survey(ctx, s, pods) }
	close(t.jobs)
}

// survey walks a filesystem. pods are the directories of pods and what they take up.
func (u *Usages) survey(ctx context.Context, s *survey, pods map[string]disk.Usage) {
	ctx, cancel := context.WithTimeout(ctx, longestSurvey)
	defer cancel()
	j := newJob("", s.point)
	m := meter{cpu: u.cpu}
	m.used()
	bytes, inodes := largest{by: bytesOf}, largest{by: inodesOf}
	w := &disk.Walker{Depth: surveyDepth, Pause: func() { u.rest(ctx, j, u.budget.Spend(m.used(), time.Now())) }}
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
	_, err := w.Usage(ctx, s.point)
	u.budget.Spend(m.used(), time.Now())
	u.mu.Lock()
	s.running, s.ended = false, time.Now()
	s.bytes, s.inodes = bytes.all, inodes.all
	u.surveying = false
	u.mu.Unlock()
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
