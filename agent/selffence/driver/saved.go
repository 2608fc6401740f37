package driver

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/evictd/evictd/agent/selffence"
)

// saved is the content of the state file. It is of one boot and one configuration: the advert of an earlier run says how
// long that one feeds, and with which timeout.
type saved struct {
	BootID  string          `json:"bootID"`
	Device  string          `json:"device"`
	Timeout time.Duration   `json:"timeout"`
	FeedGap time.Duration   `json:"feedGap"`
	Peers   bool            `json:"peers,omitempty"`
	State   selffence.State `json:"state"`
}

// fits reports whether the state was saved in this boot and with this configuration.
func (s *saved) fits(o Options) bool {
	return s.BootID == o.BootID && s.Device == o.Path && s.Timeout == o.Timeout && s.FeedGap == o.FeedGap && s.Peers == o.Peers
}

// maxSaved is the length limit of the state file in bytes.
const maxSaved = 4096

// load returns the state that an earlier run of this boot has saved; nil if there is none that can be used.
func (d *Driver) load() *selffence.State {
	content, err := os.ReadFile(d.options.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var s saved
	if err == nil && len(content) <= maxSaved {
		err = json.Unmarshal(content, &s)
	}
	switch {
	case err != nil:
		d.options.Log.Warn("the saved state of self-fencing cannot be used; the watchdog is opened when the API server has accepted an advert",
			"file", d.options.StateFile, "error", err)
		return nil
	case !s.fits(d.options):
		return nil
	}
	return &s.State
}

// save writes the state. A failure costs nothing but time at the next start: an older state allows less.
func (d *Driver) save() {
	content, err := json.Marshal(saved{d.options.BootID, d.options.Path, d.options.Timeout, d.options.FeedGap, d.options.Peers, d.state})
	if err == nil {
		temporary := d.options.StateFile + ".new"
		if err = os.WriteFile(temporary, content, 0o600); err == nil {
			err = os.Rename(temporary, d.options.StateFile)
		}
	}
	if err != nil {
		d.options.Log.Warn("the state of self-fencing is not saved", "file", d.options.StateFile, "error", err)
	}
}
