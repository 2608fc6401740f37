package podfence

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// systemd writes limits back at daemon-reload, and a resize may write others.
func TestCheck(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, h *cgroup.Hierarchy) {
		p := newPod(t, h)
		file := marksFile(t)
		table, _ := openTable(t, h, file)
		f := p.prepare(table)
		if err := f.Set("1", ""); err != nil {
			t.Fatal(err)
		}
		if r, err := table.Check(); len(r.Set) != 1 || len(r.Changed) != 0 || err != nil {
			t.Errorf("Check of an untouched fence = %+v, %v", r, err)
		}
		for _, limit := range []cgroup.Limit{cgroup.Unlimited, 77} {
			var want []Change
			for _, file := range p.files {
				p.write(file, limit.String())
				want = append(want, Change{p.uid, file, limit})
			}
			r, err := table.Check()
			if len(r.Set) != 1 || !slices.Equal(r.Changed, want) || err != nil {
				t.Errorf("Check after another program wrote %s = %+v, %v; want changes %v", limit, r, err, want)
			}
			if got := p.limits(); got != p.all("0") {
				t.Errorf("limits after Check = %s; want %s", got, p.all("0"))
			}
			if marks := marksIn(t, file); len(marks) != 1 || marks[0].old[p.files[0]] != limit {
				t.Errorf("marks after Check = %+v; want the old limit %s", marks, limit)
			}
		}
		if err := f.Lift(); err != nil || p.limits() != p.all("77") {
			t.Errorf("limits after Lift = %s, %v; want those that were written last, %s", p.limits(), err, p.all("77"))
		}

		if err := f.Set("2", ""); err != nil {
			t.Fatal(err)
		}
		p.write(p.files[0], "99") // Check has not seen it
		want := strings.Replace(p.all("77"), "77", "99", 1)
		if err := f.Lift(); err != nil || p.limits() != want {
			t.Errorf("limits after Lift = %s, %v; want %s", p.limits(), err, want)
		}
	})
}

// If the pids controller is disabled and enabled, pids.max is another file and "max".
func TestControllerDisabled(t *testing.T) {
	h := native(t)
	if h.Version != cgroup.V2 {
		t.Skip("needs pids in a v2 tree")
	}
	p := newPod(t, h)
	if len(p.files) != 2 {
		t.Skip("needs pids in a v2 tree")
	}
	table, _ := openTable(t, h, marksFile(t))
	f := p.prepare(table)
	if err := f.Set("1", ""); err != nil {
		t.Fatal(err)
	}
	p.disablePIDs()
	if r, err := table.Check(); len(r.Set) != 1 || err != nil {
		t.Errorf("Check without the pids controller = %+v, %v; want the fence set", r, err)
	}
	if err := kerneltest.EnableControllers(p.root.Path(filepath.Dir(p.path)), "pids"); err != nil {
		t.Fatal(err)
	}
	if err := f.Lift(); err != nil || p.limits() != p.all("max") {
		t.Errorf("limits after Lift = %s, %v; want %s", p.limits(), err, p.all("max"))
	}
}

// A fence without pids.max is one all the same.
func TestPartial(t *testing.T) {
	h := native(t)
	if h.Unified == "" {
		t.Skip("needs a v2 hierarchy")
	}
	p := newPod(t, unified(h))
	file := marksFile(t)
	table, _ := openTable(t, unified(h), file)
	f := p.prepare(table)
	if len(p.files) == 2 {
		p.disablePIDs()
	} else {
		f.mark.has[cgroup.PIDsMax] = true // as if it had been there at Prepare
	}
	if err := f.Set("1", ""); !errors.Is(err, ErrPartial) || errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Set = %v; want %v", err, ErrPartial)
	}
	if err := p.mkdir(); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("mkdir of a container's cgroup: %v; want %v", err, unix.EAGAIN)
	}
	if r, err := table.Check(); len(r.Set) != 1 || err != nil || len(marksIn(t, file)) != 1 {
		t.Errorf("Check = %+v, %v, %d marks; want the fence set", r, err, len(marksIn(t, file)))
	}
	if err := errors.Join(f.Lift(), p.mkdir()); err != nil {
		t.Errorf("mkdir after Lift: %v", err)
	}
}

// faults are what may happen to the file while it is open.
var faults = []struct {
	name string
	do   func(file string) error
}{
	{"removed", os.Remove},
	{"truncated", func(file string) error { return os.Truncate(file, 0) }},
	{"shortened", func(file string) error { return os.Truncate(file, recordSize+10) }},
	{"grown", func(file string) error { return os.Truncate(file, 2*fileSize) }},
	{"overwritten", func(file string) error { return overwrite(file, recordSize+100, "\xff") }},
	{"zeroed", func(file string) error { return overwrite(file, recordSize, string(make([]byte, recordSize))) }},
	{"replaced", func(file string) error {
		return errors.Join(os.WriteFile(file+".new", []byte("x"), 0o600), os.Rename(file+".new", file))
	}},
	{"a link", func(file string) error { return errors.Join(os.Remove(file), os.Symlink("/dev/null", file)) }},
	{"a fifo", func(file string) error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)) }},
	{"a socket", func(file string) error {
		return errors.Join(os.Remove(file), unix.Mknod(file, unix.S_IFSOCK|0o600, 0))
	}},
}

func overwrite(file string, at int64, content string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(content), at)
	return errors.Join(err, f.Close())
}

func TestFileFaults(t *testing.T) {
	h := native(t)
	for _, tt := range faults {
		t.Run(tt.name, func(t *testing.T) {
			p, other := newPod(t, h), newPod(t, h)
			file := marksFile(t)
			table, _ := openTable(t, h, file)
			first, second := p.prepare(table), other.prepare(table)
			if err := first.Set("1", ""); err != nil {
				t.Fatal(err)
			}
			if err := tt.do(file); err != nil {
				t.Fatal(err)
			}
			// A file that is gone or truncated keeps nothing from being fenced.
			if err := second.Set("2", ""); err != nil {
				t.Errorf("Set: %v", err)
			}
			if r, err := table.Check(); len(r.Set) != 2 || err == nil || !strings.Contains(err.Error(), "mark") {
				t.Errorf("Check = %+v, %v; want an error about the marks", r, err)
			}
			if r, err := table.Check(); len(r.Set) != 2 || err != nil {
				t.Errorf("second Check = %+v, %v; want all repaired", r, err)
			}
			if marks := marksIn(t, file); len(marks) != 2 {
				t.Errorf("marks = %+v; want 2", marks)
			}
			if st, err := os.Lstat(file); err != nil || st.Mode() != 0o600 || st.Size() != fileSize {
				t.Errorf("file has mode %v, %d bytes, %v; want 0600, %d", st.Mode(), st.Size(), err, fileSize)
			}
			if n, err := table.LiftAll(); n != 2 || err != nil {
				t.Errorf("LiftAll = %d, %v; want 2", n, err)
			}
		})
	}
}

// A directory can't be replaced: the fences stay, and each check says so.
func TestFileBecomesDirectory(t *testing.T) {
	h := native(t)
	p := newPod(t, h)
	file := marksFile(t)
	table, _ := openTable(t, h, file)
	f := p.prepare(table)
	err := errors.Join(f.Set("1", ""), os.Remove(file), os.Mkdir(file, 0o700))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if r, err := table.Check(); len(r.Set) != 1 || !errors.Is(err, unix.EISDIR) {
			t.Errorf("Check = %+v, %v; want %v", r, err, unix.EISDIR)
		}
	}
	if err := f.Lift(); err != nil {
		t.Error(err)
	}
}

// TestConcurrent sets, checks and lifts at the same time, while the file is removed.
func TestConcurrent(t *testing.T) {
	h := native(t)
	file := marksFile(t)
	table, _ := openTable(t, h, file)
	var pods []*testPod
	for range 4 {
		pods = append(pods, newPod(t, h))
	}
	stop := make(chan struct{})
	var checks sync.WaitGroup
	checks.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if n%2 == 0 {
				os.Remove(file)
			}
			table.Check()
		}
	})
	var workers sync.WaitGroup
	for i, p := range pods {
		for worker := range 2 {
			workers.Go(func() {
				for n := range 100 {
					f := p.prepare(table)
					if err := f.Set(fmt.Sprint(i, worker, n), ""); err != nil && !errors.Is(err, ErrBusy) {
						t.Errorf("Set: %v", err)
					}
					if err := f.Lift(); err != nil && !errors.Is(err, ErrBusy) {
						t.Errorf("Lift: %v", err)
					}
					f.Close()
				}
			})
		}
	}
	workers.Wait()
	close(stop)
	checks.Wait()
	if _, err := table.LiftAll(); err != nil {
		t.Error(err)
	}
	table.Check()
	for _, p := range pods {
		if got := p.limits(); got != p.all("max") {
			t.Errorf("limits = %s; want %s", got, p.all("max"))
		}
	}
	if marks := marksIn(t, file); len(marks) != 0 || len(table.fences) != 0 {
		t.Errorf("%d marks, %d fences; want none", len(marks), len(table.fences))
	}
}
