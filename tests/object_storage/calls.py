"""Calls of S3 by boto3, as a list of JSON objects in the first argument. Prints their answers as a list.

    {"url": URL, "call": "put_object", "with": {…}, "token": "42"}     one request
    {"url": URL, "state": "BUCKET"}                                    what is in a bucket

An empty token is none. `host` addresses the bucket by a host name in place of the path. "$UploadId"
and "$ETag" in `with` are those of the latest answer that had one.
"""

import functools
import json
import sys

import boto3
from botocore.awsrequest import AWSRequest
from botocore.auth import S3SigV4Auth
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.httpsession import URLLib3Session

SAVED = {}


@functools.cache
def client(url, token):
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    made = boto3.client("s3", endpoint_url=url, config=config)

    def add(request, **_):
        request.headers["X-Fencing-Token"] = token

    if token:
        made.meta.events.register("before-send.s3", add)
    return made


def filled(value):
    text = json.dumps(value)
    for name, saved in SAVED.items():
        text = text.replace(f'"${name}"', json.dumps(saved))
    return json.loads(text)


def done(step):
    arguments = filled(step.get("with", {}))
    if "size" in step:
        arguments["Body"] = b"x" * step["size"]
    try:
        answer = getattr(client(step["url"], step.get("token")), step["call"])(**arguments)
    except ClientError as error:
        said = error.response["ResponseMetadata"]
        headers = said["HTTPHeaders"]
        return {
            "code": error.response["Error"]["Code"],
            "status": said["HTTPStatusCode"],
            "outcome": headers.get("x-fencing-outcome"),
            "retry": headers.get("x-fencing-retry"),
        }
    SAVED.update({name: answer[name] for name in ("UploadId", "ETag") if name in answer})
    return {"code": "", "body": answer["Body"].read().decode() if "Body" in answer else ""}


def state(step):
    """Objects, tags, uploads that are not complete, and their parts."""
    s3, bucket = client(step["url"], None), step["state"]
    objects = s3.list_objects_v2(Bucket=bucket).get("Contents", [])
    tags = {one["Key"]: s3.get_object_tagging(Bucket=bucket, Key=one["Key"])["TagSet"] for one in objects}
    uploads = s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    parts = {
        one["UploadId"]: [
            [part["PartNumber"], part["ETag"]]
            for part in s3.list_parts(Bucket=bucket, Key=one["Key"], UploadId=one["UploadId"]).get("Parts", [])
        ]
        for one in uploads
    }
    return {"objects": {one["Key"]: one["ETag"] for one in objects}, "tags": tags, "parts": parts}


def by_host(step):
    """A signed PUT to a host name of the test's own, which no DNS knows."""
    request = AWSRequest("PUT", f"http://{step['host']}{step['path']}", data=step["body"])
    S3SigV4Auth(boto3.Session().get_credentials(), "s3", "us-east-1").add_auth(request)
    request.headers["Host"] = step["host"]
    request.headers["X-Fencing-Token"] = step["token"]
    request.url = step["url"] + step["path"]
    answer = URLLib3Session().send(request.prepare())
    return {"status": answer.status_code, "outcome": answer.headers.get("x-fencing-outcome")}


def main():
    def play(step):
        return (state if "state" in step else by_host if "host" in step else done)(step)

    print(json.dumps([play(step) for step in json.loads(sys.argv[1])]))


if __name__ == "__main__":
    main()
