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

// makeNested creates n cgroups in a cgroup, as a tenant can in a container. The cleanup
// removes those that were created.
func (c cgroup) makeNested(t *testing.T, prefix string, n int) {
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

// With more cgroups in one container than the sampler lists, the figures of the pods, the
// rows of other pods and crossings are still right.
func TestManyNestedCgroups(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	qos := top.child(t, "burstable")
	tenant := qos.child(t, "tenant").child(t, "container")
	cacheIn := tenant.child(t, "zz")
	other := qos.child(t, "other").child(t, "container")
	tenant.makeNested(t, "before", 9000)
	last := cgroup{filepath.Join(tenant.dir, "before8999"), tenant.v1}
	nested, hog := startHog(t, last), startHog(t, other)
	nested.run("grow %d", 16*mib)
	nested.run("cache %s", cacheFile(t))
	hog.run("grow %d", 32*mib)
	setPods(t, s, top)

	// A walk reads only the usage of the tenant's container. The lists of its cgroups are
	// from the last survey.
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
			if table.Truncated { // the machine is slow: the next survey lists fewer
				return false
			}
			rows := byCgroup(t, list)
			its, others := rows[tenant.id(t)], rows[other.id(t)]
			if its.Usage != tenant.usage(t) || !its.Partial || its.InactiveFile < cachedBytes/2 || its.Anon < 15*mib {
				t.Logf("row of the tenant's container = %+v; want it partial, with a usage of %d and the memory of its cgroups", its, tenant.usage(t))
				return false
			}
			if others.Usage != other.usage(t) || others.Partial || others.Anon < 31*mib || others.Anon > 64*mib {
				t.Logf("row of the other container = %+v; want a whole one with a usage of %d", others, other.usage(t))
				return false
			}
			used := pods(t, s)
			if !used.Valid || used.Usage != top.usage(t) || used.InactiveFile < cachedBytes/2 {
				t.Logf("Pods = %+v; want them valid, with a usage of %d", used, top.usage(t))
				return false
			}
			return true
		})
	}
	check("figures of nested cgroups")
	tenant.makeNested(t, "after", 1500)
	cacheIn.makeNested(t, "below", 1500)
	check("figures after more nested cgroups")

	used := pods(t, s)
	arm(t, s, Threshold{Key: 3, Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - 64*mib, GrowthFloor: 16 * mib})
	hog.run("grow %d", 160*mib)
	if c := nextRecord(t, ring).Crossing; c.Key != 3 || c.Waiting || !c.Sample.Pods.Valid {
		t.Errorf("crossing = %+v; want it answered, with valid figures", c)
	}
	stats, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a survey took %v in %d slices, a walk %v, the longest tick %v", stats.SurveyTime, stats.SurveySlices, stats.WalkTime, stats.LongestTick)
}

// File cache of a cgroup that walks do not visit is not mistaken for other memory.
func TestNestedFileCacheCrosses(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	tenant := top.child(t, "burstable").child(t, "tenant").child(t, "container")
	tenant.makeNested(t, "nested", 3000)
	hog := startHog(t, cgroup{filepath.Join(tenant.dir, "nested2999"), tenant.v1})
	file := coldFile(t)
	th := armPodsThreshold(t, s, top, 24*mib)
	hog.run("activate %s", file)
	c := nextRecord(t, ring).Crossing
	if !c.Waiting {
		t.Errorf("crossing = %+v; want it to wait", c)
	}
	compareWithRule(t, th, &c)
	noRecord(t, ring, s, 20)
	hog.run("grow %d", 48*mib)
	answered := nextRecord(t, ring).Crossing
	if answered.Waiting || answered.Seen != c.Seen {
		t.Errorf("second record = %+v; want the same crossing, answered", answered)
	}
	compareWithRule(t, th, &answered)
}

// A survey handles cgroups that are nested deeper than it lists.
func TestDeeplyNestedCgroups(t *testing.T) {
	_, s := openSampler(t, Options{})
	top := makeCgroup(t)
	deep := top.child(t, "burstable").child(t, "pod").child(t, "container")
	container := deep
	for range 80 {
		deep = deep.child(t, "d")
	}
	startHog(t, deep).run("grow %d", 16*mib)
	setPods(t, s, top)
	rows, _ := walk(t, s)
	if row := rows[container.id(t)]; row.Usage < 16*mib || row.Anon < 15*mib {
		t.Errorf("row of the container = %+v; want the memory of the cgroup 80 levels below", row)
	}
	if got := pods(t, s); !got.Valid {
		t.Errorf("Pods = %+v; want them valid", got)
	}
}

// A survey ends even if a tenant removes and creates cgroups all the time, among them the
// one at which a slice has ended.
func TestSurveyDuringRemovals(t *testing.T) {
	_, s := openSampler(t, Options{WalkLimit: 1}) // a slice is 32 cgroups
	top := makeCgroup(t)
	qos := top.child(t, "burstable")
	tenant := qos.child(t, "tenant").child(t, "container")
	qos.child(t, "other").child(t, "container")
	const n = 200
	tenant.makeNested(t, "churn", n)
	setPods(t, s, top)
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
	before := tickNow(t, s).Stats.Surveys
	eventually(t, "three surveys", func() bool { return tickNow(t, s).Stats.Surveys >= before+3 })
}

// If a walk over nested cgroups takes too long, the next survey lists fewer of them, and
// the figures of the pods are valid.
func TestLateWalkListsFewerNestedCgroups(t *testing.T) {
	_, s := openSampler(t, Options{WalkLimit: 1}) // a walk over 32 cgroups is late
	top := makeCgroup(t)
	tenant := top.child(t, "burstable").child(t, "tenant").child(t, "container")
	tenant.makeNested(t, "nested", 200)
	startHog(t, cgroup{filepath.Join(tenant.dir, "nested199"), tenant.v1}).run("grow %d", 16*mib)
	setPods(t, s, top)
	eventually(t, "figures of the pods", func() bool {
		var sample Sample
		return s.Sample(&sample) == nil && sample.Pods.Valid && !sample.Pods.Truncated
	})
	rows, _ := walk(t, s)
	if row := rows[tenant.id(t)]; len(rows) > 32 || !row.Partial || row.Usage != tenant.usage(t) || row.Anon < 15*mib {
		t.Errorf("%d rows, of the container %+v; want few rows, and that one partial with the memory of its cgroups", len(rows), row)
	}
}
