package shutdown

import (
	"encoding/json"
	"testing"
)

func TestStateOfTwoWaves(t *testing.T) {
	var s State
	content := `{"phase":"stopping","manual":true,"second":true,"pods":[{"uid":"a","pod":"x/a","status":"asked"},{"uid":"b","pod":"x/b","last":true,"status":"waiting"}]}`
	if err := json.Unmarshal([]byte(content), &s); err != nil {
		t.Fatal(err)
	}
	if s.Phase != Stopping || !s.Manual || s.Wave != secondWave || len(s.Pods) != 2 || s.Pods[0].Wave != 0 || s.Pods[1].Wave != secondWave || s.Pods[1].Status != Waiting {
		t.Errorf("state = %+v; want the second wave asked, with b", s)
	}
}
