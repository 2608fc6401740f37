package trace

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/tests/hog/stamp"
)

const killsText = `# tracer: nop
#
# entries-in-buffer/entries-written: 2/2   #P:2
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
            bash-1426    [001] d..1.  4201.202408: signal_generate: sig=9 errno=0 code=0 comm=bash pid=1447 grp=1 res=0
CPU:0 [LOST 3 EVENTS]
 a [1] b: c: d-77    [000] d.h2.  4201.302408: signal_generate: sig=9 errno=0 code=128 comm=x pid=1 code=0 pid=1448 grp=1 res=0
`

func TestKills(t *testing.T) {
	events, err := ParseEvents([]byte(killsText))
	if err != nil {
		t.Fatal(err)
	}
	var got []Kill
	for _, e := range events {
		k, err := parseKill(e)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, k)
	}
	const at = 4201 * time.Second
	want := []Kill{{at + 202408*time.Microsecond, 1447, false, 1426}, {at + 302408*time.Microsecond, 1448, true, 77}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kills of the trace (-want +got):\n%s", diff)
	}
}

func TestParseKillErrors(t *testing.T) {
	for _, details := range []string{
		"",
		"sig=9 errno=0 code=0 comm=hog",
		"sig=9 errno=0 comm=hog pid=7 grp=1 res=0",
		"sig=9 errno=0 code=x comm=hog pid=7 grp=1 res=0",
		"sig=9 errno=0 code=0 comm=hog pid=-7 grp=1 res=0",
	} {
		if got, err := parseKill(Event{Details: details}); err == nil {
			t.Errorf("parseKill(%q) = %+v; want an error", details, got)
		}
	}
	if k, err := parseKill(Event{Details: "sig=9 errno=0 code=-6 comm=hog pid=7 grp=0 res=0"}); err != nil || k.PID != 7 || k.Kernel {
		t.Errorf("parseKill of tgkill's code = %+v, %v; want pid 7, not the kernel's", k, err)
	}
}

func TestParseRun(t *testing.T) {
	const details = "prev_comm=a next_pid=7 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=evictd next_pid=1426 next_prio=98"
	if got, err := parseRun(Event{At: 5, Details: details}); err != nil || got != (Run{5, 1426}) {
		t.Errorf("parseRun() = %+v, %v; want process 1426 at 5 ns", got, err)
	}
	for _, bad := range []string{"", "prev_pid=3", "prev_pid=3 next_pid=x next_prio=98"} {
		if got, err := parseRun(Event{Details: bad}); err == nil {
			t.Errorf("parseRun(%q) = %+v; want an error", bad, got)
		}
	}
}

func FuzzParseEvents(f *testing.F) {
	f.Add([]byte(killsText))
	f.Add([]byte("[ ] 1.0: a:"))
	f.Fuzz(func(t *testing.T, text []byte) {
		events, err := ParseEvents(text)
		if err != nil {
			return
		}
		for _, e := range events {
			if e.At < 0 {
				t.Errorf("ParseEvents(%q) has time %v; want no negative time", text, e.At)
			}
			if k, err := parseKill(e); err == nil && k.PID <= 0 {
				t.Errorf("parseKill(%+v) = %+v; want a positive PID", e, k)
			}
		}
	})
}

// TestKillsAreRecordedOnce checks that a SIGKILL is in the kernel's trace until Clear.
func TestKillsAreRecordedOnce(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	trace, err := Open(fmt.Sprint("evictd-trace-test-", os.Getpid()))
	if err != nil {
		t.Skip("needs the kernel's tracing: ", err)
	}
	t.Cleanup(func() {
		if err := trace.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := trace.RecordKills(); err != nil {
		t.Fatal(err)
	}
	before := stamp.Now()
	cmd := exec.Command("/bin/sleep", "1h")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	seen := func() (found []Kill) {
		kills, err := trace.Kills()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range kills {
			if k.PID == cmd.Process.Pid {
				found = append(found, k)
			}
		}
		return found
	}
	// The trace has times in whole microseconds.
	if found := seen(); len(found) != 1 || found[0].Kernel || found[0].At < before.Truncate(time.Microsecond) || found[0].At > stamp.Now() {
		t.Errorf("kills of process %d = %+v; want one since %v", cmd.Process.Pid, found, before)
	}
	if err := trace.Clear(); err != nil {
		t.Fatal(err)
	}
	if found := seen(); len(found) > 0 {
		t.Errorf("kills of process %d = %+v; want none after the trace was cleared", cmd.Process.Pid, found)
	}
}
