package process

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestOOMScoreAdjGet(t *testing.T) {
	for text, want := range map[string]int{"-997\n": -997, "1000\n": 1000, "0\n": 0} {
		if got, err := readOOMScoreAdj(t, text); got != want || err != nil {
			t.Errorf("Get() of %q = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1001\n", "x\n", "00000000000000000001\n"} {
		if got, err := readOOMScoreAdj(t, text); err == nil {
			t.Errorf("Get() of %q = %d; want an error", text, got)
		}
	}
}

func readOOMScoreAdj(t *testing.T, text string) (int, error) {
	t.Helper()
	s, err := OpenOOMScoreAdj(kernel.FS(kerneltest.Tree(t, map[string]string{"7/oom_score_adj": text})), 7)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return s.Get()
}

// Raising the value needs no privilege, and Get returns what Set wrote. Both fail for
// a process that has ended.
func TestOOMScoreAdjSet(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s, err := OpenOOMScoreAdj("/proc", cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Set(777); err != nil {
		t.Error(err)
	}
	if got, err := s.Get(); got != 777 || err != nil {
		t.Errorf("Get() = %d, %v; want 777", got, err)
	}
	if err := s.Set(1001); err == nil {
		t.Error("Set(1001) = nil; want an error")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := s.Get(); !errors.Is(err, ErrGone) {
		t.Errorf("Get() of a process that has ended = %v; want ErrGone", err)
	}
	if err := s.Set(0); !errors.Is(err, ErrGone) {
		t.Errorf("Set() of a process that has ended = %v; want ErrGone", err)
	}
}
