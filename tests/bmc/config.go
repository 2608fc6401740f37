package bmc

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

//go:embed hook.sh
var hookScript string

// emulator describes the BMC to ipmi_sim.
const emulator = `mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
sensor_add 0x20 0 0 35 0x6f event-only
mc_enable 0x20
`

// lanConfig is the format of ipmi_sim's lan.conf: name, address, port, GUID, hook, name, user, password.
const lanConfig = `name "%s"
set_working_mc 0x20
  startlan 1
    addr %s %d
    priv_limit admin
    allowed_auths_admin none md2 md5 straight
    guid %s
  endlan
  chassis_control "%s %s"
  user 2 true "%s" "%s" admin 10 none md2 md5 straight
`

var (
	word = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	guid = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

// check sets defaults and refuses what ipmi_sim would not understand: it splits its configuration at blanks.
func (o *Options) check() error {
	for value, otherwise := range map[*string]string{
		&o.Name: "host1", &o.GUID: "a123456789abcdefa123456789abcdef", &o.Address: "127.0.0.1",
		&o.Username: "admin", &o.Password: "secret",
	} {
		if *value == "" {
			*value = otherwise
		}
	}
	if !filepath.IsAbs(o.Dir) {
		return fmt.Errorf("start ipmi_sim: directory %q is not absolute", o.Dir)
	}
	for _, value := range []string{o.Name, o.Address, o.Username, o.Password} {
		if !word.MatchString(value) {
			return fmt.Errorf("start ipmi_sim: %q has other characters than letters, digits, '.', '_' and '-'", value)
		}
	}
	if len(o.Password) > 20 || len(o.Username) > 16 {
		return errors.New("start ipmi_sim: password longer than 20 characters, or user name longer than 16")
	}
	if !guid.MatchString(o.GUID) {
		return fmt.Errorf("start ipmi_sim: GUID %q is not 32 hexadecimal digits in lower case", o.GUID)
	}
	return nil
}

// prepare writes the hook and its state, and the parts of ipmi_sim's configuration that do not depend on the port.
func (o *Options) prepare() error {
	power := "1\n"
	if o.Off {
		power = "0\n"
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, "state"), 0o755); err != nil {
		return fmt.Errorf("prepare ipmi_sim: %w", err)
	}
	if _, err := os.Lstat(filepath.Join(o.Dir, "power")); err == nil {
		return fmt.Errorf("prepare ipmi_sim: %s is in use by another simulator, or was", o.Dir)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(o.Dir, "hook.sh"), []byte(hookScript), 0o755),
		os.WriteFile(filepath.Join(o.Dir, "power"), []byte(power), 0o644),
		os.WriteFile(filepath.Join(o.Dir, "bmc.emu"), []byte(emulator), 0o644),
	)
}

// configure writes lan.conf.
func (o *Options) configure(port int) error {
	text := fmt.Sprintf(lanConfig, o.Name, o.Address, port, o.GUID, filepath.Join(o.Dir, "hook.sh"), o.Name, o.Username,
		o.Password)
	return os.WriteFile(filepath.Join(o.Dir, "lan.conf"), []byte(text), 0o600)
}
