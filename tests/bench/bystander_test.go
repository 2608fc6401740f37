package main

import (
	"os/exec"
	"testing"
	"time"
)

func TestBystandersAlive(t *testing.T) {
	s := new(testbed)
	for range 2 {
		cmd := exec.Command("/bin/sleep", "1h")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		})
		v := new(victim)
		if err := v.watch(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		s.bystanders = append(s.bystanders, v)
	}
	if !s.bystandersAlive() {
		t.Fatal("bystandersAlive() = false with two running processes; want true")
	}
	s.bystanders[1].kill()
	if !s.bystanders[1].ended(time.Minute) {
		t.Fatal("a killed process has not exited within a minute")
	}
	if s.bystandersAlive() {
		t.Error("bystandersAlive() = true after one was killed; want false")
	}
}

func TestCrossingsCountSurvivals(t *testing.T) {
	c := new(crossings)
	for _, r := range []crossing{
		{by: byContender, bystanderPods: 3, bystandersAlive: true}, {by: byContender, bystanderPods: 3}, {by: byNone, bystanderPods: 3, bystandersAlive: true}, {by: byEarly, bystanderPods: 3, bystandersAlive: true},
	} {
		c.add(r)
	}
	if c.BystanderPods != 3 || c.Survived != 3 || c.n() != 4 {
		t.Errorf("%d bystanders, survived %d of %d; want 3, 3 of 4", c.BystanderPods, c.Survived, c.n())
	}
	if got, want := c.otherEvents(), "all 3 bystanders survived: 3 of 4; no kill: 1"; got != want {
		t.Errorf("otherEvents() = %q; want %q", got, want)
	}
}
