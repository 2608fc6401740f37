package podfence

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/cgroup"
)

const envFile = "EVICTD_TEST_FENCE_FILE"

// TestMain lets the test binary run as an evictd that sets a fence and is killed.
func TestMain(m *testing.M) {
	if file := os.Getenv(envFile); file != "" {
		if err := setAndWait(file); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func setAndWait(file string) error {
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		return err
	}
	if os.Getenv("EVICTD_TEST_FENCE_UNIFIED") != "" {
		h = unified(h)
	}
	table, _, err := Open(Options{File: file, BootID: testBoot, Hierarchy: h})
	if err != nil {
		return err
	}
	f, err := table.Prepare(testUID, []string{os.Getenv("EVICTD_TEST_FENCE_CONTAINER")})
	if err != nil {
		return err
	}
	if err := f.Set("order7", "note7"); err != nil {
		return err
	}
	fmt.Println("set")
	select {}
}

// An evictd that is killed leaves its fence, which the next one finds, keeps or lifts.
func TestKilled(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, h *cgroup.Hierarchy) {
		p := newPod(t, h)
		p.write(p.files[0], "500")
		before, file := p.limits(), marksFile(t)
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), envFile+"="+file, "EVICTD_TEST_FENCE_CONTAINER="+p.containers[0])
		if strings.HasSuffix(t.Name(), "unified") {
			cmd.Env = append(cmd.Env, "EVICTD_TEST_FENCE_UNIFIED=1")
		}
		out, err := cmd.StdoutPipe()
		if err := errors.Join(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		defer cmd.Process.Kill()
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "set\n" {
			t.Fatalf("child prints %q, %v; want set", line, err)
		}
		o := Options{File: file, BootID: testBoot, Hierarchy: h}
		if _, _, err := Open(o); !errors.Is(err, ErrLocked) {
			t.Errorf("Open beside another evictd: %v; want %v", err, ErrLocked)
		}
		if _, _, err := Release(o); !errors.Is(err, ErrLocked) {
			t.Errorf("Release beside another evictd: %v; want %v", err, ErrLocked)
		}
		cmd.Process.Kill()
		cmd.Wait()
		if got := p.limits(); got != p.all("0") {
			t.Errorf("limits after SIGKILL = %s; want %s", got, p.all("0"))
		}

		for range 2 { // again after a second crash
			table, left := openTable(t, h, file)
			if len(left) != 1 || left[0].UID() != p.uid || left[0].Path() != p.path || left[0].Order != "order7" || left[0].Note != "note7" {
				t.Fatalf("found %+v; want the fence of pod %s with order7 and note7", left, p.uid)
			}
			if r, err := table.Check(); len(r.Set) != 1 || len(r.Changed) != 0 || err != nil {
				t.Errorf("Check = %+v, %v; want one unchanged", r, err)
			}
			table.Close()
		}
		table, left := openTable(t, h, file)
		if err := left[0].Lift(); err != nil || p.limits() != before {
			t.Errorf("limits after Lift = %s, %v; want %s", p.limits(), err, before)
		}
		if n := len(table.fences); n != 0 {
			t.Errorf("%d fences after Lift; want 0", n)
		}
		table.Close()
		if _, left := openTable(t, h, file); len(left) != 0 {
			t.Errorf("found %+v after Lift; want none", left)
		}
	})
}

// leaveMark leaves the file of an evictd that was killed after the mark and before the
// limits were written.
func leaveMark(t *testing.T, p *testPod, file string) {
	t.Helper()
	table, _ := openTable(t, p.hierarchy, file)
	f := p.prepare(table)
	f.readOld()
	f.slot, _ = table.claim()
	if err := f.writeMark(); err != nil {
		t.Fatal(err)
	}
	table.Close()
}

func TestKilledAfterMark(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, h *cgroup.Hierarchy) {
		p := newPod(t, h)
		p.write(p.files[0], "500")
		before, file := p.limits(), marksFile(t)
		for _, keep := range []bool{false, true} {
			leaveMark(t, p, file)
			table, left := openTable(t, h, file)
			if len(left) != 1 {
				t.Fatalf("found %d fences; want 1", len(left))
			}
			next := newPod(t, h).prepare(table)
			if err := next.Set("2", ""); err != nil || len(marksIn(t, file)) != 2 {
				t.Errorf("Set of another pod: %v, %d marks; want 2", err, len(marksIn(t, file)))
			}
			if err := next.Lift(); err != nil {
				t.Error(err)
			}
			if keep {
				// Nobody else has written the limits, so they are no change to report.
				if r, err := table.Check(); len(r.Set) != 1 || len(r.Changed) != 0 || err != nil {
					t.Errorf("Check = %+v, %v; want one unchanged", r, err)
				}
				if got := p.limits(); got != p.all("0") {
					t.Errorf("limits after Check = %s; want %s", got, p.all("0"))
				}
			}
			if err := left[0].Lift(); err != nil || p.limits() != before {
				t.Errorf("keep=%t: limits after Lift = %s, %v; want %s", keep, p.limits(), err, before)
			}
			table.Close()
		}
	})
}

// A mark of a removed cgroup is discarded, also if another cgroup has its path.
func TestRecoverGone(t *testing.T) {
	h := native(t)
	for _, again := range []bool{false, true} {
		p := newPod(t, h)
		file := marksFile(t)
		leaveMark(t, p, file)
		p.remove()
		if again {
			p.make()
		}
		if _, left := openTable(t, h, file); len(left) != 0 {
			t.Errorf("again=%t: found %+v; want none", again, left)
		}
		if marks := marksIn(t, file); len(marks) != 0 {
			t.Errorf("again=%t: marks %+v; want none", again, marks)
		}
	}
}

// A mark whose limits can't be opened is reported, and found by a later start.
func TestRecoverLater(t *testing.T) {
	h := native(t)
	p := newPod(t, h)
	file := marksFile(t)
	leaveMark(t, p, file)
	without := &cgroup.Hierarchy{Version: cgroup.V1, Memory: h.Memory}
	table, found, err := Open(Options{File: file, BootID: testBoot, Hierarchy: without})
	if err != nil || len(found.Fences) != 0 || found.Problem == nil {
		t.Errorf("Open without the pids controller = %+v, %v; want a problem", found, err)
	}
	table.Close()
	if _, left := openTable(t, h, file); len(left) != 1 {
		t.Errorf("found %d fences; want 1", len(left))
	}
}

func TestOtherBoot(t *testing.T) {
	h := native(t)
	p := newPod(t, h)
	file := marksFile(t)
	leaveMark(t, p, file)
	table, found, err := Open(Options{File: file, BootID: "another", Hierarchy: h})
	if err != nil || found.Problem != nil || len(found.Fences) != 0 {
		t.Errorf("Open after a reboot = %+v, %v; want nothing found", found, err)
	}
	table.Close()
	if _, left := openTable(t, h, file); len(left) != 0 {
		t.Errorf("found %+v; want none, because the other boot discarded them", left)
	}
	if _, _, err := Open(Options{File: file, Hierarchy: h}); err == nil {
		t.Error("Open without a boot id succeeded")
	}
}

// A file that others could write, or that is none, is not believed and never followed.
func TestOpenFile(t *testing.T) {
	h := native(t)
	for _, tt := range []struct {
		name    string
		do      func(file string) error
		problem string // "" for none
		found   int
	}{
		{"readable by others", func(file string) error { return os.Chmod(file, 0o644) }, "", 1},
		{"writable by others", func(file string) error { return os.Chmod(file, 0o602) }, "others may write it: mode 0602", 0},
		{"another user's", func(file string) error { return os.Chown(file, 1000, -1) }, "it belongs to user 1000", 0},
		{"a link", func(file string) error {
			return errors.Join(os.Rename(file, file+".old"), os.Symlink(file+".old", file))
		}, "not a regular file", 0},
		{"a fifo", func(file string) error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)) }, "not a regular file", 0},
		{"broken record", func(file string) error { return overwrite(file, recordSize+atID, "\xff\xff") }, "record 0 is broken: wrong checksum; it may be the mark of pod \"" + testUID, 0},
		{"header lost", func(file string) error { return overwrite(file, 0, "\xff") }, "the header is broken", 1},
		{"truncated", func(file string) error { return os.Truncate(file, 0) }, "", 0},
		{"shortened", func(file string) error { return os.Truncate(file, 2*recordSize) }, "it has 2048 bytes", 1},
		{"grown", func(file string) error { return os.Truncate(file, 2*fileSize) }, "bytes, not", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPod(t, h)
			file := marksFile(t)
			leaveMark(t, p, file)
			if err := tt.do(file); err != nil {
				t.Fatal(err)
			}
			table, found, err := Open(Options{File: file, BootID: testBoot, Hierarchy: h})
			if err != nil {
				t.Fatal(err)
			}
			if len(found.Fences) != tt.found || (found.Problem == nil) != (tt.problem == "") || found.Problem != nil && !strings.Contains(found.Problem.Error(), tt.problem) {
				t.Errorf("Open = %+v; want %d fences, problem %q", found, tt.found, tt.problem)
			}
			if st, err := os.Lstat(file); err != nil || st.Mode() != 0o600 || st.Size() != fileSize {
				t.Errorf("file has mode %v, %d bytes, %v; want 0600, %d", st.Mode(), st.Size(), err, fileSize)
			}
			table.Close()
			openTable(t, h, file) // no problem any more
		})
	}
}

func TestOpenFails(t *testing.T) {
	h := native(t)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		file string
		want error
	}{
		{dir, unix.EISDIR},
		{dir + "/file/fences", unix.ENOTDIR},
		{"/proc/fences", unix.ENOENT},
	} {
		if _, _, err := Open(Options{File: tt.file, BootID: testBoot, Hierarchy: h}); !errors.Is(err, tt.want) {
			t.Errorf("Open(%s) = %v; want %v", tt.file, err, tt.want)
		}
	}
}

// The pages are in memory when a mark is written under memory pressure.
func TestFileIsLocked(t *testing.T) {
	buffer, err := unix.Mmap(-1, 0, fileSize, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(buffer)
	if err := unix.Mlock(buffer); err != nil {
		t.Skip("needs RLIMIT_MEMLOCK or CAP_IPC_LOCK: ", err)
	}
	table, _ := openTable(t, native(t), marksFile(t))
	content, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, mapping, ok := strings.Cut(string(content), table.o.File+"\n")
	if !ok {
		t.Fatalf("no mapping of %s", table.o.File)
	}
	if _, locked, _ := strings.Cut(mapping, "\nLocked:"); !strings.HasPrefix(strings.TrimSpace(locked), fmt.Sprint((fileSize+4095)/4096*4)) {
		t.Errorf("mapping has %.20q locked; want all", locked)
	}
}
