package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nest makes n cgroups in a cgroup, as a tenant can in a container of its own. Cleanup
// removes them whether or not all were made.
func (c cgroup) nest(t *testing.T, prefix string, n int) {
	t.Helper()
	path := func(i int) string { return filepath.Join(c.dir, prefix+strconv.Itoa(i)) }
	t.Cleanup(func() {
		for i := range n {
			eventually(t, "remove a nested cgroup", func() bool {
				err := os.Remove(path(i))
				return err == nil || errors.Is(err, os.ErrNotExist)
			})
		}
	})
	if !c.v1 {
		write(t, filepath.Join(c.dir, "cgroup.subtree_control"), "+memory")
	}
	for i := range n {
		if err := os.Mkdir(path(i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// More cgroups than the sampler lists, all made in one container, leave the figures of
// the pods, the rows of other pods and the pods' crossing as they are.
func TestManyNestedCgroups(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	qos := top.child(t, "burstable")
	tenant := qos.child(t, "tenant").child(t, "container")
	cacheIn := tenant.child(t, "zz")
	other := qos.child(t, "other").child(t, "container")
	tenant.nest(t, "before", 9000)
	last := cgroup{filepath.Join(tenant.dir, "before8999"), tenant.v1}
	nested, hog := startHog(t, last), startHog(t, other)
	nested.do("grow %d", 16*mib)
	nested.do("cache %s", cacheFile(t))
	hog.do("grow %d", 32*mib)
	follow(t, s, top)

	// Of the tenant's container only the usage is known in each walk; what is on the
	// lists of its cgroups comes from the last survey.
	check := func(when string) {
		t.Helper()
		eventually(t, when, func() bool {
			if err := s.Walk(time.Second); err != nil {
				t.Fatal(err)
			}
			list, table, err := s.Rows(nil)
			if err != nil {
				t.Fatal(err)
			}
			if table.Truncated { // late, on a slow machine: the next survey lists fewer
				return false
			}
			rows := byCgroup(t, list)
			its, others := rows[tenant.id(t)], rows[other.id(t)]
			if its.Usage != tenant.usage(t) || !its.Partial || its.InactiveFile < cached/2 || its.Anon < 15*mib {
				t.Logf("row of the tenant's container = %+v; want it partial, with a usage of %d and what its cgroups have", its, tenant.usage(t))
				return false
			}
			if others.Usage != other.usage(t) || others.Partial || others.Anon < 31*mib || others.Anon > 64*mib {
				t.Logf("row of the other container = %+v; want a whole one with a usage of %d", others, other.usage(t))
				return false
			}
			used := pods(t, s)
			if !used.Valid || used.Usage != top.usage(t) || used.InactiveFile < cached/2 {
				t.Logf("Pods = %+v; want them valid, with a usage of %d", used, top.usage(t))
				return false
			}
			return true
		})
	}
	check("figures of cgroups that were there")
	tenant.nest(t, "after", 1500)
	cacheIn.nest(t, "below", 1500)
	check("figures while more come")

	used := pods(t, s)
	arm(t, s, Threshold{Key: 3, Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - 64*mib, GrowthFloor: 16 * mib})
	hog.do("grow %d", 160*mib)
	if c := next(t, ring).Crossing; c.Key != 3 || c.Waiting || !c.Sample.Pods.Valid {
		t.Errorf("crossing = %+v; want it answered, on figures that are valid", c)
	}
	stats, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a survey took %v in %d slices, a walk %v, the longest tick %v", stats.SurveyTime, stats.SurveySlices, stats.WalkTime, stats.Longest)
}

// File cache that is read in a cgroup which no walk visits is still told apart from
// other memory before its crossing is answered.
func TestNestedFileCacheCrosses(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	tenant := top.child(t, "burstable").child(t, "tenant").child(t, "container")
	tenant.nest(t, "nested", 3000)
	hog := startHog(t, cgroup{filepath.Join(tenant.dir, "nested2999"), tenant.v1})
	file := cacheFile(t)
	th := crossPods(t, s, top, 24*mib)
	hog.do("cache %s", file)
	hog.do("activate %s", file)
	c := next(t, ring).Crossing
	if !c.Waiting {
		t.Errorf("crossing = %+v; want it to wait", c)
	}
	checkRule(t, th, &c)
	none(t, ring, s, 20)
	hog.do("grow %d", 48*mib)
	answered := next(t, ring).Crossing
	if answered.Waiting || answered.Seen != c.Seen {
		t.Errorf("second record = %+v; want the same crossing, answered", answered)
	}
	checkRule(t, th, &answered)
}

// No depth of nesting ends a survey.
func TestDeeplyNestedCgroups(t *testing.T) {
	_, s := openSampler(t, Options{})
	top := makeCgroup(t)
	deep := top.child(t, "burstable").child(t, "pod").child(t, "container")
	container := deep
	for range 80 {
		deep = deep.child(t, "d")
	}
	startHog(t, deep).do("grow %d", 16*mib)
	follow(t, s, top)
	rows, _ := walked(t, s)
	if row := rows[container.id(t)]; row.Usage < 16*mib || row.Anon < 15*mib {
		t.Errorf("row of the container = %+v; want what the cgroup 80 below it uses", row)
	}
	if got := pods(t, s); !got.Valid {
		t.Errorf("Pods = %+v; want them valid", got)
	}
}

// A survey comes to its end although a tenant removes cgroups as soon as they are made,
// at which a slice may have ended.
func TestSurveyAmongRemovals(t *testing.T) {
	_, s := openSampler(t, Options{WalkLimit: 1}) // a slice is 32 cgroups
	top := makeCgroup(t)
	qos := top.child(t, "burstable")
	tenant := qos.child(t, "tenant").child(t, "container")
	qos.child(t, "other").child(t, "container")
	const n = 200
	tenant.nest(t, "churn", n)
	follow(t, s, top)
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for i := 0; ; i = (i + 1) % n {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			dir := filepath.Join(tenant.dir, "churn"+strconv.Itoa(i))
			if err := errors.Join(unix.Rmdir(dir), unix.Mkdir(dir, 0o755)); err != nil {
				stopped <- err
				return
			}
		}
	}()
	defer func() {
		close(stop)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	}()
	before := now(t, s).Stats.Surveys
	eventually(t, "three surveys", func() bool { return now(t, s).Stats.Surveys >= before+3 })
}

// Where a walk over the cgroups that pods nest takes too long, fewer of them are listed,
// and the figures of the pods are there all the same.
func TestFewerNestedWhereWalksAreLate(t *testing.T) {
	_, s := openSampler(t, Options{WalkLimit: 1}) // a walk over 32 cgroups is late
	top := makeCgroup(t)
	tenant := top.child(t, "burstable").child(t, "tenant").child(t, "container")
	tenant.nest(t, "nested", 200)
	startHog(t, cgroup{filepath.Join(tenant.dir, "nested199"), tenant.v1}).do("grow %d", 16*mib)
	follow(t, s, top)
	eventually(t, "figures of the pods", func() bool {
		var sample Sample
		return s.Sample(&sample) == nil && sample.Pods.Valid && !sample.Pods.Truncated
	})
	rows, _ := walked(t, s)
	if row := rows[tenant.id(t)]; len(rows) > 32 || !row.Partial || row.Usage != tenant.usage(t) || row.Anon < 15*mib {
		t.Errorf("%d rows, of the container %+v; want few, and that one partial with what its cgroups use", len(rows), row)
	}
}
