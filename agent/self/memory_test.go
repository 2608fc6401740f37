package self

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/process"
)

// Memory is trimmed and locked when the lanes have opened, and once more when the start
// is over and the node is idle; only the former without the privilege to lock it.
func TestLockMemory(t *testing.T) {
	_, forbidden := process.LockMemory()
	t.Cleanup(func() {
		if err := unix.Munlockall(); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		start, opened, idleAt := time.Now(), 2*time.Second, 30*time.Second
		var warmUps []time.Duration
		New("/proc", nil, slog.New(slog.NewTextHandler(t.Output(), nil))).LockMemory(t.Context(),
			func() bool { return time.Since(start) < opened }, func() bool { return time.Since(start) >= idleAt },
			func(context.Context) bool { warmUps = append(warmUps, time.Since(start)); return true })
		if forbidden != nil && len(warmUps) == 1 {
			return
		}
		if len(warmUps) != 2 || warmUps[0] < opened || warmUps[0] > opened+time.Second || warmUps[1] < idleAt || warmUps[1] > idleAt+time.Second {
			t.Errorf("memory locked after %v; want it after %v and again after %v", warmUps, opened, idleAt)
		}
	})
}

func TestUnchangedMappings(t *testing.T) {
	// From Linux 6.18, shortened. The third has pages that were relocated in a
	// position-independent executable.
	const smaps = `00400000-00c83000 r-xp 00000000 fe:00 10210878                           /usr/sbin/evictd
Size:               8716 kB
Rss:                4352 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me sd
00c83000-0163c000 r--p 00883000 fe:00 10210878                           /usr/sbin/evictd
Anonymous:             0 kB
0163c000-01640000 r--p 0123c000 fe:00 10210878                           /usr/sbin/evictd
Anonymous:            16 kB
01640000-016fe000 rw-p 01240000 fe:00 10210878                           /usr/sbin/evictd
Anonymous:             0 kB
016fe000-01740000 rw-p 00000000 00:00 0 
Anonymous:             0 kB
7f61765c6000-7f617671c000 r-xp 00026000 fe:00 326269                     /usr/lib/x86_64-linux-gnu/libc.so.6
Anonymous:             0 kB
7ffc3a1f2000-7ffc3a1f4000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0xc83000}, {0xc83000, 0x163c000}}
	if diff := cmp.Diff(want, unchangedMappings([]byte(smaps), "/usr/sbin/evictd"), cmp.AllowUnexported(mapping{})); diff != "" {
		t.Errorf("unchangedMappings() differs (-want +got):\n%s", diff)
	}
	for _, text := range []string{"", "\n", "x\n", "00400000-zz r-xp 0 fe:00 1 /usr/sbin/evictd\nAnonymous: 0 kB\n", "Anonymous: 0 kB\n"} {
		if got := unchangedMappings([]byte(text), "/usr/sbin/evictd"); len(got) > 0 {
			t.Errorf("unchangedMappings(%q) = %x; want none", text, got)
		}
	}
}

// Dropped pages return from the file: the rest of this test runs from them.
func TestDropTextPages(t *testing.T) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	if len(unchangedMappings(maps, exe)) == 0 {
		t.Errorf("no mapping of %s can be dropped; want its text", exe)
	}
	if err := dropTextPages(); err != nil {
		t.Errorf("dropTextPages() = %v; want no error", err)
	}
}
