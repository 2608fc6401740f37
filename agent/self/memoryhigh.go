package self

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
)

// WarnMemoryHigh logs a warning where an evictd of this boot that still had
// pressure.memory.brake was killed before it restored memory.high. That evictd kept
// brake.json in the state directory until it had restored the limit. The limit is
// left as it is, because another program may have set it since.
func (p *Process) WarnMemoryHigh(stateDir, bootID string) {
	file := filepath.Join(stateDir, "brake.json")
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var left struct {
		BootID string `json:"bootID"`
		Cgroup string `json:"cgroup"`
		Was    uint64 `json:"was"`
	}
	if err == nil {
		err = json.Unmarshal(content, &left)
	}
	switch {
	case err != nil:
		p.log.Warn("could not read which memory.high an earlier evictd lowered; check the one of the pods' cgroup, then remove the file", "file", file, "error", err)
	case left.BootID == bootID:
		limit := "max"
		if left.Was != math.MaxUint64 {
			limit = strconv.FormatUint(left.Was, 10)
		}
		p.log.Warn("an earlier evictd was killed before it restored memory.high, which may throttle all pods; write the limit back, then remove the file",
			"memory.high", p.hierarchy.Memory.Path(left.Cgroup, "memory.high"), "limit", limit, "file", file)
	}
}
