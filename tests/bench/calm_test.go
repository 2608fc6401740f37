package main

import (
	"os/exec"
	"testing"
	"time"
)

func TestSpared(t *testing.T) {
	s := new(stage)
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
	if !s.spared() {
		t.Fatal("spared() = false while both live; want true")
	}
	s.bystanders[1].kill()
	if !s.bystanders[1].ended(time.Minute) {
		t.Fatal("a process that was killed has not ended after a minute")
	}
	if s.spared() {
		t.Error("spared() = true where one has died; want false")
	}
}

func TestCrossingsCountTheSpared(t *testing.T) {
	c := new(crossings)
	for _, r := range []crossing{
		{by: byContender, calm: 3, spared: true}, {by: byContender, calm: 3}, {by: byNobody, calm: 3, spared: true}, {by: byEarly, calm: 3, spared: true},
	} {
		c.add(r)
	}
	if c.Calm != 3 || c.Spared != 3 || c.n() != 4 {
		t.Errorf("calm pods %d, spared %d of %d; want 3, 3 of 4", c.Calm, c.Spared, c.n())
	}
	if got, want := c.beside(), "all 3 calm pods lived: 3 of 4; never fired: 1"; got != want {
		t.Errorf("beside() = %q; want %q", got, want)
	}
}
