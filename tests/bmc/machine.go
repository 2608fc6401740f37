package bmc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Call is a command that the BMC gave to the machine.
type Call struct {
	// At is when it took effect, or would have.
	At time.Time
	// Action is for example "power 0"; "reset 1" is a reset.
	Action string
	// Effect is done, ignored or refused.
	Effect string
}

// Power returns whether the machine is on.
func (s *Simulator) Power() (bool, error) {
	b, err := os.ReadFile(s.file("power"))
	if err != nil {
		return false, fmt.Errorf("read the power of the machine: %w", err)
	}
	return strings.TrimSpace(string(b)) == "1", nil
}

// SetPower changes the power without the BMC's doing, as the machine's power button does.
func (s *Simulator) SetPower(on bool) error {
	value := "0\n"
	if on {
		value = "1\n"
	}
	return s.replace("power", value)
}

// Ignore makes the BMC accept commands and do nothing.
func (s *Simulator) Ignore(ignore bool) error { return s.flag("ignore", ignore) }

// Refuse makes the BMC answer commands with completion code 0xff.
func (s *Simulator) Refuse(refuse bool) error { return s.flag("refuse", refuse) }

// Delay makes the BMC answer readings and commands of the power only after a time. It handles no other request then.
func (s *Simulator) Delay(d time.Duration) error {
	if d == 0 {
		return s.flag("delay", false)
	}
	return s.replace("delay", strconv.FormatFloat(d.Seconds(), 'f', -1, 64)+"\n")
}

// Log returns the commands that the machine was given, oldest first.
func (s *Simulator) Log() ([]Call, error) {
	b, err := os.ReadFile(s.file("log"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log of the machine: %w", err)
	}
	var calls []Call
	for line := range strings.Lines(string(b)) {
		call, err := parseCall(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, err
		}
		calls = append(calls, call)
	}
	return calls, nil
}

// parseCall parses a line of the log:
//
//	1779555000.123456789 done power 0
func parseCall(line string) (Call, error) {
	fields := strings.SplitN(line, " ", 3)
	if len(fields) != 3 {
		return Call{}, fmt.Errorf("log of the machine: malformed line %q", line)
	}
	seconds, fraction, _ := strings.Cut(fields[0], ".")
	sec, err := strconv.ParseInt(seconds, 10, 64)
	nsec, err2 := strconv.ParseInt(fraction, 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return Call{}, fmt.Errorf("log of the machine: malformed time in %q: %w", line, err)
	}
	return Call{At: time.Unix(sec, nsec), Effect: fields[1], Action: fields[2]}, nil
}

func (s *Simulator) file(name string) string { return filepath.Join(s.options.Dir, name) }

// flag creates or removes a file.
func (s *Simulator) flag(name string, set bool) error {
	if set {
		return s.replace(name, "")
	}
	if err := os.Remove(s.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// replace writes a file at once: the hook reads it at any time.
func (s *Simulator) replace(name, content string) error {
	temporary := s.file(name + ".changed")
	if err := os.WriteFile(temporary, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, s.file(name))
}
