package podfence

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

func TestFence(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, h *cgroup.Hierarchy) {
		p := newPod(t, h)
		file := marksFile(t)
		table, _ := openTable(t, h, file)
		fork := p.startForker()
		f := p.prepare(table)
		// The limits may change between Prepare and Set.
		p.write(p.files[0], "77")
		before := p.limits()

		check := func(when string, want error) {
			t.Helper()
			for _, file := range p.files {
				got, what := fork(), "fork"
				if file == cgroup.MaxDescendants {
					got, what = p.mkdir(), "mkdir of a container's cgroup"
				}
				if !errors.Is(got, want) {
					t.Errorf("%s: %s: %v; want %v", when, what, got, want)
				}
			}
		}
		check("before Set", nil)
		if err := f.Set("order1", ""); err != nil {
			t.Fatal(err)
		}
		check("fenced", unix.EAGAIN)
		if got := p.limits(); got != p.all("0") {
			t.Errorf("limits of a fenced pod = %s; want %s", got, p.all("0"))
		}
		marks := marksIn(t, file)
		if len(marks) != 1 || marks[0].uid != p.uid || marks[0].order != "order1" || marks[0].path != p.path {
			t.Errorf("marks = %+v; want one of pod %s with order1 and path %s", marks, p.uid, p.path)
		}
		if err := f.Set("order2", ""); err != nil { // set already
			t.Errorf("second Set: %v", err)
		}
		if err := f.Lift(); err != nil {
			t.Fatal(err)
		}
		check("lifted", nil)
		if got := p.limits(); got != before {
			t.Errorf("limits of a pod whose fence was lifted = %s; want %s", got, before)
		}
		if marks := marksIn(t, file); len(marks) != 0 {
			t.Errorf("marks after Lift = %+v; want none", marks)
		}
		if err := f.Lift(); err != nil { // not set
			t.Errorf("second Lift: %v", err)
		}
		if err := f.Set("order3", ""); err != nil {
			t.Errorf("Set after Lift: %v", err)
		}
		check("fenced again", unix.EAGAIN)
		if n, err := table.LiftAll(); n != 1 || err != nil {
			t.Errorf("LiftAll = %d, %v; want 1", n, err)
		}
		check("all lifted", nil)
	})
}

func TestPrepareRefuses(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, h *cgroup.Hierarchy) {
		p := newPod(t, h)
		table, _ := openTable(t, h, marksFile(t))
		gone := strings.Replace(p.containers[0], "burstable", "besteffort", 1)
		for _, tt := range []struct {
			name, uid  string
			containers []string
			want       error
		}{
			{"QoS class as pod", "burstable", []string{p.path}, nil},
			{"another pod's", "1", p.containers, nil},
			{"no container", p.uid, nil, nil},
			{"no such cgroup", p.uid, []string{gone}, cgroup.ErrGone},
			{"long UID", strings.Repeat("u", maxUID+1), []string{"/kubepods/pod" + strings.Repeat("u", maxUID+1) + "/ctr"}, nil},
			{"long path", p.uid, []string{"/" + strings.Repeat("r", maxPath) + p.containers[0]}, nil},
		} {
			_, err := table.Prepare(tt.uid, tt.containers)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("%s: Prepare = %v; want %v", tt.name, err, tt.want)
			}
		}
	})
}

func TestReadOnlyHierarchy(t *testing.T) {
	h := *native(t)
	p := newPod(t, &h)
	dir := t.TempDir()
	err := unix.Mount(string(p.root), dir, "", unix.MS_BIND, "")
	if err == nil {
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
		err = unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err != nil {
		t.Skip("needs to mount: ", err)
	}
	if h.Version == cgroup.V2 {
		h.Memory = kernel.FS(dir)
	} else {
		h.Pids = kernel.FS(dir)
	}
	table, _ := openTable(t, &h, marksFile(t))
	if _, err := table.Prepare(p.uid, p.containers); !errors.Is(err, unix.EROFS) {
		t.Errorf("Prepare on a read-only hierarchy: %v; want %v", err, unix.EROFS)
	}
}

// A pod's handle may be replaced while the fence is set: the limits are then 0, which must
// not become the old ones.
func TestPrepareAgain(t *testing.T) {
	h := native(t)
	p := newPod(t, h)
	file := marksFile(t)
	table, _ := openTable(t, h, file)
	before := p.limits()
	first := p.prepare(table)
	if err := first.Set("1", ""); err != nil {
		t.Fatal(err)
	}
	second := p.prepare(table)
	first.Close()
	if err := second.Set("2", ""); err != nil {
		t.Error(err)
	}
	if marks := marksIn(t, file); len(marks) != 1 {
		t.Errorf("%d marks; want 1", len(marks))
	}
	second.Close()
	if r, err := table.Check(); len(r.Set) != 1 || err != nil {
		t.Errorf("Check of a fence whose handles are closed = %+v, %v; want it set", r, err)
	}
	if err := second.Lift(); err != nil {
		t.Error(err)
	}
	if got := p.limits(); got != before {
		t.Errorf("limits = %s; want %s", got, before)
	}
	if err := second.Set("3", ""); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Set of a closed fence: %v; want %v", err, os.ErrClosed)
	}
	if n := len(table.fences); n != 0 {
		t.Errorf("%d fences are open after Close; want 0", n)
	}
}

// A limit of 0 that was found is restored as 0.
func TestOldZero(t *testing.T) {
	h := native(t)
	p := newPod(t, h)
	table, _ := openTable(t, h, marksFile(t))
	p.write(p.files[0], "0")
	before := p.limits()
	f := p.prepare(table)
	if err := errors.Join(f.Set("1", ""), f.Lift()); err != nil {
		t.Fatal(err)
	}
	if got := p.limits(); got != before {
		t.Errorf("limits = %s; want %s", got, before)
	}
}

func TestGone(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, h *cgroup.Hierarchy) {
		p := newPod(t, h)
		file := marksFile(t)
		table, _ := openTable(t, h, file)
		f := p.prepare(table)
		p.remove()
		p.make()
		if err := f.Set("1", ""); !errors.Is(err, cgroup.ErrGone) {
			t.Errorf("Set of a removed cgroup: %v; want %v", err, cgroup.ErrGone)
		}
		if marks := marksIn(t, file); len(marks) != 0 {
			t.Errorf("marks of a removed cgroup = %+v; want none", marks)
		}
		f.Close()

		// Another cgroup has the path now: it is another fence.
		before := p.limits()
		second, third := p.prepare(table), (*Fence)(nil)
		if second == f {
			t.Fatal("Prepare returned the fence of a removed cgroup")
		}
		if err := second.Set("2", ""); err != nil {
			t.Fatal(err)
		}
		p.remove()
		p.make()
		r, err := table.Check()
		if err != nil || len(r.Set) != 0 || !slices.EqualFunc(r.Gone, []string{p.uid}, func(f *Fence, uid string) bool { return f.UID() == uid }) {
			t.Errorf("Check after the removal = %+v, %v; want the pod gone", r, err)
		}
		third = p.prepare(table)
		if err := third.Set("3", ""); err != nil {
			t.Fatal(err)
		}
		p.remove()
		p.make()
		if err := third.Lift(); err != nil {
			t.Errorf("Lift after the removal: %v", err)
		}
		if got := p.limits(); got != before {
			t.Errorf("limits of the pod's next cgroup = %s; want %s", got, before)
		}
		if marks := marksIn(t, file); len(marks) != 0 {
			t.Errorf("marks = %+v; want none", marks)
		}
	})
}

// A fence that could not be lifted keeps its mark and the old limits, also if the pod is
// evicted again before it can be.
func TestLiftFails(t *testing.T) {
	h := native(t)
	for _, again := range []bool{false, true} {
		p := newPod(t, h)
		file := marksFile(t)
		table, _ := openTable(t, h, file)
		p.write(p.files[0], "500")
		before := p.limits()
		f := p.prepare(table)
		if err := f.Set("1", "note"); err != nil {
			t.Fatal(err)
		}
		f.limits.Close()
		if n, err := table.LiftAll(); n != 0 || !errors.Is(err, os.ErrClosed) {
			t.Errorf("LiftAll = %d, %v; want %v", n, err, os.ErrClosed)
		}
		if marks := marksIn(t, file); len(marks) != 1 || marks[0].order+marks[0].note != "" {
			t.Errorf("marks %+v; want 1, without the order, which has ended", marks)
		}
		if again {
			if err := f.Set("2", ""); !errors.Is(err, os.ErrClosed) {
				t.Errorf("Set = %v; want %v", err, os.ErrClosed)
			}
			if marks := marksIn(t, file); len(marks) != 1 {
				t.Errorf("%d marks after Set failed; want 1", len(marks))
			}
		}
		if err := f.reopen(); err != nil {
			t.Fatal(err)
		}
		lift := f.Lift
		if again {
			if err := f.Set("3", ""); err != nil {
				t.Error(err)
			}
		} else {
			lift = func() error { _, err := table.Check(); return err }
		}
		if err := lift(); err != nil || p.limits() != before {
			t.Errorf("again=%t: limits after Lift = %s, %v; want %s", again, p.limits(), err, before)
		}
		if marks := marksIn(t, file); len(marks) != 0 {
			t.Errorf("%d marks after Lift; want none", len(marks))
		}
	}
}

func TestFull(t *testing.T) {
	h := native(t)
	p := newPod(t, h)
	table, _ := openTable(t, h, marksFile(t))
	for slot := range table.used {
		table.used[slot].Store(true)
	}
	f, before := p.prepare(table), p.limits()
	if err := f.Set("1", ""); !errors.Is(err, ErrFull) {
		t.Errorf("Set = %v; want %v", err, ErrFull)
	}
	if got := p.limits(); got != before {
		t.Errorf("limits = %s; want %s", got, before)
	}
	table.used[maxFences-1].Store(false)
	if err := f.Set("1", ""); err != nil || f.slot != maxFences-1 {
		t.Errorf("Set with one free record = %v, record %d; want %d", err, f.slot, maxFences-1)
	}
	if err := f.Lift(); err != nil {
		t.Error(err)
	}
}

// Without a mark there is no fence.
func TestSetWithoutFile(t *testing.T) {
	h := native(t)
	p := newPod(t, h)
	table, _ := openTable(t, h, marksFile(t))
	f, before := p.prepare(table), p.limits()
	table.file.Load().File.Close()
	if err := f.Set("1", ""); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Set = %v; want %v", err, os.ErrClosed)
	}
	if got := p.limits(); got != before {
		t.Errorf("limits = %s; want %s", got, before)
	}
	if err := f.Set(strings.Repeat("o", maxOrder+1), ""); err == nil {
		t.Error("Set with a long order ID succeeded")
	}
}

// Close leaves the fences to the next evictd.
func TestCloseTable(t *testing.T) {
	h := native(t)
	p := newPod(t, h)
	file := marksFile(t)
	table, _ := openTable(t, h, file)
	before := p.limits()
	f := p.prepare(table)
	if err := f.Set("1", ""); err != nil {
		t.Fatal(err)
	}
	table.Close()
	if err := f.Lift(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Lift after Close: %v; want %v", err, os.ErrClosed)
	}
	if _, err := table.Prepare(p.uid, p.containers); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Prepare after Close: %v; want %v", err, os.ErrClosed)
	}
	if r, err := table.Check(); len(r.Set) != 0 || err != nil {
		t.Errorf("Check after Close = %+v, %v", r, err)
	}
	f.Close()
	if got := p.limits(); got != p.all("0") {
		t.Errorf("limits after Close = %s; want %s", got, p.all("0"))
	}
	released, problem, err := Release(Options{File: file, BootID: testBoot, Hierarchy: h})
	if want := []Released{{UID: p.uid, Path: p.path}}; !slices.Equal(released, want) || problem != nil || err != nil {
		t.Errorf("Release = %+v, %v, %v; want %+v", released, problem, err, want)
	}
	if got := p.limits(); got != before {
		t.Errorf("limits after Release = %s; want %s", got, before)
	}
}

// Where no evictd has set fences, Release makes no file.
func TestReleaseWithoutFile(t *testing.T) {
	file := marksFile(t)
	released, problem, err := Release(Options{File: file, BootID: testBoot, Hierarchy: native(t)})
	if len(released) != 0 || problem != nil || err != nil {
		t.Errorf("Release = %+v, %v, %v; want nothing", released, problem, err)
	}
	if _, err := os.Stat(filepath.Dir(file)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the file exists: %v", err)
	}
}

// A later Set completes the fence, or says that it is set in part.
func TestSetAgain(t *testing.T) {
	h := native(t)
	p := newPod(t, h)
	table, _ := openTable(t, h, marksFile(t))
	f := p.prepare(table)
	before := p.limits()
	if err := f.Set("1", ""); err != nil {
		t.Fatal(err)
	}
	p.write(p.files[0], "500")
	f.limits.Close()
	if err := f.Set("1", ""); !errors.Is(err, ErrPartial) {
		t.Errorf("Set while the limits can't be written = %v; want %v", err, ErrPartial)
	}
	if err := f.reopen(); err != nil {
		t.Fatal(err)
	}
	if err := f.Set("1", ""); err != nil || p.limits() != p.all("0") {
		t.Errorf("Set = %v, limits %s; want %s", err, p.limits(), p.all("0"))
	}
	if err := f.Lift(); err != nil || p.limits() == before || p.limits() == p.all("0") {
		t.Errorf("Lift = %v, limits %s; want 500 in one", err, p.limits())
	}
}

// A fence that is set is marked with the order of a later Set, if that has a note, and stays set when
// its order is removed.
func TestAnotherOrder(t *testing.T) {
	h := native(t)
	p := newPod(t, h)
	file := marksFile(t)
	table, _ := openTable(t, h, file)
	f := p.prepare(table)
	for _, step := range []struct {
		do   func() error
		want string // the order and the note
	}{
		{func() error { return f.Set("order1", "note1") }, "order1note1"},
		{func() error { return f.Set("order2", "") }, "order1note1"},
		{func() error { return f.Set("order2", "note2") }, "order2note2"},
		{func() error { return f.Disown("order1") }, "order2note2"},
		{func() error { return f.Disown("order2") }, ""},
		{func() error { return f.Set("order3", "note3") }, "order3note3"},
		{table.DisownAll, ""},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if marks := marksIn(t, file); len(marks) != 1 || marks[0].order+marks[0].note != step.want || p.limits() != p.all("0") {
			t.Errorf("marks = %+v, limits %s; want %q and a fence", marks, p.limits(), step.want)
		}
	}
	table.Close()
	if _, left := openTable(t, h, file); len(left) != 1 || left[0].Order+left[0].Note != "" {
		t.Errorf("found %+v; want the fence without an order", left)
	}
}
