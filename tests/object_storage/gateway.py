"""A gateway for objects, and a DynamoDB beside it: moto as a server, which checks signatures.

    gateway.py [BUCKET …]

Makes a user who may do everything with S3, and the buckets. From then on, an S3 request that this
user's key has not signed is refused. Prints one line of JSON: where it listens, and the key.
"""

import json
import signal
import sys

import boto3
from moto import settings
from moto.server import ThreadedMotoServer

POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


def main():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    own = {"aws_access_key_id": "setup", "aws_secret_access_key": "setup", "region_name": "us-east-1"}
    iam = boto3.client("iam", endpoint_url=url, **own)
    iam.create_user(UserName="worker")
    iam.put_user_policy(UserName="worker", PolicyName="objects", PolicyDocument=json.dumps(POLICY))
    key = iam.create_access_key(UserName="worker")["AccessKey"]
    storage = boto3.client("s3", endpoint_url=url, **own)
    for bucket in sys.argv[1:]:
        storage.create_bucket(Bucket=bucket)
    if sys.argv[1:]:
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    print(json.dumps({"port": port, "key": key["AccessKeyId"], "secret": key["SecretAccessKey"]}), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
