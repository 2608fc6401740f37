package properties

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Number returns a function that sets a whole number with limits.
func Number(into *int32, least, most int32) func(string) error {
	return func(value string) error {
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || int32(n) < least || int32(n) > most {
			return fmt.Errorf("write a number from %d to %d", least, most)
		}
		*into = int32(n)
		return nil
	}
}

// Duration returns a function that sets a duration with limits.
func Duration(into *time.Duration, least, most time.Duration) func(string) error {
	return func(value string) error {
		d, err := ParseDuration(value)
		if err != nil || d < least || d > most {
			return fmt.Errorf("write a duration from %s to %s, such as 90s or 1m30s", least, most)
		}
		*into = d
		return nil
	}
}

// OneOf returns a function that sets one of several values.
func OneOf[T any](into *T, values map[string]T, remedy string) func(string) error {
	return func(value string) error {
		v, ok := values[value]
		if !ok {
			return errors.New(remedy)
		}
		*into = v
		return nil
	}
}

// ParseDuration parses a Go duration, or a number of seconds.
func ParseDuration(value string) (time.Duration, error) {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, nil
	}
	return time.ParseDuration(value)
}

// ParseSwitch parses a boolean as fence agents do: yes and no, and their synonyms.
func ParseSwitch(value string) (bool, error) {
	switch Fold(value) {
	case "1", "yes", "on", "true":
		return true, nil
	case "0", "no", "off", "false":
		return false, nil
	}
	return false, errors.New("write yes or no")
}

// Fold returns a key in lower case and with underscores.
func Fold(key string) string { return strings.ReplaceAll(strings.ToLower(key), "-", "_") }
