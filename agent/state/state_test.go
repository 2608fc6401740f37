package state

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/signal"
)

var saveTime = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func example(now time.Time) Saved {
	return Saved{
		Decision: evict.State{
			Timers:        []evict.Timer{{Threshold: evict.ThresholdKey{Signal: signal.MemoryAvailable, Soft: true}, Since: now.Add(-30 * time.Second)}},
			Conditions:    []evict.ConditionTimer{{Condition: signal.MemoryPressure, LastSeen: now.Add(-time.Second)}},
			Victims:       []evict.Victim{{UID: "u", Pod: "default/web", Cause: "memory.available", Decided: now.Add(-2 * time.Second), Due: now.Add(28 * time.Second), ProgressAt: now, Status: evict.Unsettled}},
			Backoffs:      []evict.Backoff{{Signal: signal.PIDAvailable, Until: now.Add(time.Minute), Delay: time.Minute}},
			DryRunVictims: []evict.DryRunVictim{{UID: "p", Cause: evict.CausePodLimit, Signal: signal.NodeFsAvailable, OverLimit: true}},
			Revivals:      []evict.Revival{{UID: "r", Until: now.Add(time.Hour), Delay: time.Minute}},
		},
		Records: []evict.Record{{Pod: "default/old", UID: "o", Cause: "memory.available", Decided: now.Add(-time.Hour), Result: evict.ResultKilled}},
		Reclaims: []evict.ReclaimReport{{
			At: now.Add(-time.Hour), Kind: evict.ReclaimImages, Reason: "pressure", Signal: signal.NodeFsAvailable, Removed: []string{"a"},
			Deficit: 9, Freed: 7, Duration: time.Second, Note: "n", Error: "e",
		}},
		Shutdown: shutdown.State{
			Phase: shutdown.Stopping, Began: now.Add(-5 * time.Second), WaveBegan: now.Add(-time.Second), Listed: true, Current: 1,
			Schedule: shutdown.Schedule{{Priority: 0, Time: time.Minute}, {Priority: 9, Time: time.Minute}},
			Pods:     []shutdown.PodState{{UID: "u", Pod: "default/web", Status: shutdown.Asked, Grace: time.Second, Due: now, Limit: now.Add(time.Second)}},
		},
		GoingDown: true,
		LastBoot:  &shutdown.LastBoot{Reason: shutdown.LastUnknown},
		Images:    []evict.ImageUse{{ID: "never", First: now.Add(-time.Hour)}, {ID: "used", First: now.Add(-time.Hour), Last: now.Add(-time.Minute)}},
		Kubelets:  []evict.KubeletProcess{{PID: 70, Executable: "/usr/bin/kubelet", Start: 7000}},
		Orders: []kube.SavedOrder{{ // evictd-kube recognizes by Decided what it has written, whatever the clock
			Order: kube.Order{ID: "i", UID: "u", Namespace: "default", Name: "web", Stage: kube.StageEnded, Reason: "Evicted", Decided: saveTime},
			Began: now.Add(-3 * time.Second), Killed: now.Add(-2 * time.Second), Answer: kube.AnswerGone, Answered: now.Add(-time.Second),
		}},
	}
}

func TestRestart(t *testing.T) {
	// A threshold that was acted on stays Active over any absence.
	active := evict.Timer{Threshold: evict.ThresholdKey{Signal: signal.MemoryAvailable}, Active: true}
	waiting := evict.Timer{Threshold: evict.ThresholdKey{Signal: signal.AllocatableMemoryAvailable, Derived: true}}
	hard := &file{Saved: Saved{Decision: evict.State{Timers: []evict.Timer{waiting, active}}}}
	if got, _ := hard.restore(Clock{Uptime: time.Minute}); len(got.Decision.Timers) != 1 || !got.Decision.Timers[0].Active {
		t.Errorf("restore() after a minute = timers %+v; want only the active one", got.Decision.Timers)
	}

	// So does one that is left to a kubelet, over an absence in which the kubelet may act.
	left := func() *file {
		disk, pid := evict.ThresholdKey{Signal: signal.NodeFsAvailable}, evict.ThresholdKey{Signal: signal.PIDAvailable}
		soft := evict.ThresholdKey{Signal: signal.NodeFsAvailable, Soft: true}
		return &file{Saved: Saved{Decision: evict.State{Timers: []evict.Timer{{Threshold: disk}, {Threshold: pid}, {Threshold: soft}}}}}
	}
	for absence, want := range map[time.Duration]int{time.Second: 3, time.Minute - 1: 2, time.Minute: 1, 5 * time.Minute: 0} {
		if got, _ := left().restore(Clock{Uptime: absence}); len(got.Decision.Timers) != want {
			t.Errorf("restore() after %v = timers %+v; want %d", absence, got.Decision.Timers, want)
		}
	}

	// The clocks at the save and after the pause. Between them the wall clock was
	// set forward by a day.
	before := Clock{BootID: "b1", Uptime: time.Hour, Now: saveTime}
	restarted := func(boot string, pause time.Duration) Clock {
		return Clock{BootID: boot, Uptime: time.Hour + pause, Now: saveTime.Add(24*time.Hour + pause)}
	}
	for _, tc := range []struct {
		name  string
		after Clock
		want  func(now time.Time) Saved
		note  string
	}{
		{"3s later", restarted("b1", 3*time.Second), func(now time.Time) Saved {
			s := example(now.Add(-3 * time.Second))
			s.Records, s.Reclaims = example(saveTime).Records, example(saveTime).Reclaims
			return s
		}, ""},
		{"10s later", restarted("b1", 10*time.Second), func(now time.Time) Saved {
			s := example(now.Add(-10 * time.Second))
			s.Decision.Timers, s.Records, s.Reclaims = nil, example(saveTime).Records, example(saveTime).Reclaims
			return s
		}, "grace timers dropped: evictd was not running for 10s"},
		{"another boot", restarted("b2", time.Second), func(time.Time) Saved {
			return Saved{Records: example(saveTime).Records, Reclaims: example(saveTime).Reclaims, PreviousRun: &shutdown.PreviousRun{At: saveTime, GoingDown: true}}
		}, "another boot"},
		{"clock of this boot went back", restarted("b1", -time.Second), func(time.Time) Saved {
			return Saved{Records: example(saveTime).Records, Reclaims: example(saveTime).Reclaims, LastBoot: &shutdown.LastBoot{Reason: shutdown.LastUnknown}}
		}, "later time of this boot"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store, err := Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			if err := store.Save(example(saveTime), before); err != nil {
				t.Fatal(err)
			}
			got, note, err := store.Load(tc.after)
			if err != nil {
				t.Fatalf("Load() = %v", err)
			}
			if diff := cmp.Diff(tc.want(tc.after.Now), got); diff != "" {
				t.Errorf("Load() differs (-want +got):\n%s", diff)
			}
			if !strings.Contains(note, tc.note) || (note == "") != (tc.note == "") {
				t.Errorf("note = %q; want %q", note, tc.note)
			}
		})
	}
}

// openFile opens a directory whose state file has a content.
func openFile(t *testing.T, dir, content string) *Store {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// A state of an earlier version has no causes of dry-run victims.
func TestLoadDryRunVictimsWithoutCause(t *testing.T) {
	dir := t.TempDir()
	content := `{"format":1,"bootID":"b","now":"2030-01-02T03:04:05Z","decision":{"pretended":[{"uid":"a","signal":"pid.available"},
		{"uid":"b","signal":"memory.available","limit":true,"contention":"MemoryContention"}]}}`
	store := openFile(t, dir, content)
	got, _, err := store.Load(Clock{BootID: "b", Now: saveTime})
	if err != nil {
		t.Fatal(err)
	}
	want := []evict.DryRunVictim{
		{UID: "a", Cause: "pid.available", Signal: signal.PIDAvailable},
		{UID: "b", Cause: "MemoryContention", Signal: signal.MemoryAvailable, OverLimit: true, Contention: "MemoryContention"},
	}
	if diff := cmp.Diff(want, got.Decision.DryRunVictims); diff != "" {
		t.Errorf("dry-run victims differ (-want +got):\n%s", diff)
	}
}

func TestLoadEmptyDirectory(t *testing.T) {
	store, err := Open(filepath.Join(t.TempDir(), "new", "dir"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	got, note, err := store.Load(Clock{BootID: "b", Now: saveTime})
	if err != nil || note != "" || !cmp.Equal(got, Saved{}) {
		t.Errorf("Load() of an empty directory = %+v, %q, %v; want zero values", got, note, err)
	}
}

func TestLoadCorrupt(t *testing.T) {
	for name, content := range map[string]string{
		"empty":        "",
		"cut short":    `{"format":1,"bootID":"b","decision":{"timers":[`,
		"other format": `{"format":2}`,
		"wrong types":  `{"format":1,"decision":{"timers":{"a":1}}}`,
		"bad signal":   `{"format":1,"decision":{"timers":[{"threshold":{"signal":"x"}}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store := openFile(t, dir, content)
			_, _, err := store.Load(Clock{BootID: "b", Now: saveTime})
			var corrupt *CorruptError
			if !errors.As(err, &corrupt) {
				t.Fatalf("Load() = %v; want a CorruptError", err)
			}
			if kept, err := os.ReadFile(corrupt.MovedTo); err != nil || string(kept) != content {
				t.Errorf("%s = %q, %v; want what was there", corrupt.MovedTo, kept, err)
			}
			if _, _, err := store.Load(Clock{}); err != nil {
				t.Errorf("second Load() = %v; want no saved state", err)
			}
		})
	}
}

func TestOpenLocked(t *testing.T) {
	dir := t.TempDir()
	first, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("second Open() = %v; want ErrLocked", err)
	}
	first.Close()
	again, err := Open(dir)
	if err != nil {
		t.Fatalf("Open() after Close() = %v", err)
	}
	again.Close()
}

func TestSaveLeavesNoTemporaryFile(t *testing.T) {
	dir := t.TempDir()
	store, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	// A directory at the file's path makes the rename fail.
	if err := os.MkdirAll(filepath.Join(dir, fileName, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(example(saveTime), Clock{BootID: "b", Now: saveTime}); err == nil {
		t.Error("Save() over a directory = nil; want an error")
	}
	entries, err := filepath.Glob(filepath.Join(dir, fileName+".*"))
	if err != nil || len(entries) != 0 {
		t.Errorf("temporary files after a failed Save() = %v, %v; want none", entries, err)
	}
}

// Images are saved by age. A wall clock that is set while evictd runs, as on a
// machine that boots without a clock, makes no image older.
func TestSaveImagesAfterClockChange(t *testing.T) {
	store, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	now := time.Now()
	seen := now.Add(-time.Hour) // with a monotonic reading, as in a running evictd
	set := Clock{BootID: "b", Uptime: time.Hour, Now: now}
	if err := store.Save(Saved{Images: []evict.ImageUse{{ID: "a", First: seen}}}, set); err != nil {
		t.Fatal(err)
	}
	later := Clock{BootID: "b", Uptime: time.Hour + time.Minute, Now: now.AddDate(30, 0, 0).Round(0)}
	got, _, err := store.Load(later)
	if err != nil {
		t.Fatal(err)
	}
	if age := later.Now.Sub(got.Images[0].First); age != time.Hour+time.Minute {
		t.Errorf("age of the image = %v after the clock was set by 30 years; want 1h1m", age)
	}
}

// Open removes the temporary files of a run that was killed while writing.
func TestOpenRemovesTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"state.json.123456", "state.json.7", fileName + newSuffix, factsName + newSuffix, fileName + corruptSuffix} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	store, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	left, err := filepath.Glob(filepath.Join(dir, "*.json*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != fileName+corruptSuffix {
		t.Errorf("files after Open() = %q, %v; want only the corrupt one", left, err)
	}
}
